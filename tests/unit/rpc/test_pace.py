"""How much of a server's time one peer gets."""

from __future__ import annotations

import pytest

from specdec.rpc.pace import BURST_S, READING_SHARE, Pace


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("took_s", [1e-5, 0.004, 0.3])
@pytest.mark.parametrize("num_peers", [2, 8])
def test_a_peer_that_never_stops_gets_its_share(took_s, num_peers) -> None:
    clock = Clock()
    pace, spent_s = Pace(clock), 0.0
    while clock.now_s < 100.0:
        clock.now_s += took_s
        spent_s += took_s
        clock.now_s += pace.spend(took_s, num_peers)
    assert spent_s <= 100.0 * READING_SHARE / num_peers + BURST_S + 2 * took_s


def test_steps_of_a_large_batch_are_read_at_once() -> None:
    """256 records take 1.5 ms, at 50 steps per second; so they are with another target beside."""
    clock = Clock()
    pace = Pace(clock)
    for _ in range(500):
        clock.now_s += 0.02
        assert pace.spend(0.0015, 2) == 0.0


def test_who_is_alone_never_waits() -> None:
    assert Pace(Clock()).spend(100.0, 1) == 0.0
