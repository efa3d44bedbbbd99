"""Probes: paid from a small share of the time, fair, and quick to follow a success."""

from __future__ import annotations

from specdec.speculation.controller.probe import MAX_FREE_IN_A_ROW, TIME_SHARE, ProbeOption, Prober


def options(*ks: int) -> list[ProbeOption]:
    return [ProbeOption(row, seq_id=row + 10, k=k, max_k=8) for row, k in enumerate(ks)]


def run(prober: Prober, ks: tuple[int, ...], steps: int, price_s: float) -> list[int]:
    """Steps of one second whose probes fail; the sequences probed."""
    probed = []
    for _ in range(steps):
        if prober.is_due and (option := prober.choose(options(*ks), lambda _: price_s)):
            probed.append(option.seq_id)
        prober.end_step(1.0)
    return probed


def test_probes_take_their_share_of_the_time() -> None:
    for price_s in (0.05, 0.5):
        probed = run(Prober(), (0, 0), 1000, price_s)
        assert 0.8 * TIME_SHARE * 1000 <= len(probed) * price_s <= TIME_SHARE * 1000 + price_s


def test_turns_are_fair_and_the_switched_off_go_first() -> None:
    assert run(Prober(), (0, 0, 0), 150, 0.2)[:5] == [10, 11, 12, 10, 11]
    assert set(run(Prober(), (3, 0), 100, 0.2)) == {11}


def test_credit_does_not_pile_up_without_need() -> None:
    prober = Prober()
    for _ in range(10_000):
        prober.end_step(1.0)
    assert len(run(prober, (0,), 10, 0.5)) == 2


def test_success_is_followed_up_at_once_and_free_of_charge() -> None:
    prober = Prober()
    prober.end_step(0.5 / TIME_SHARE)
    streak = 0
    for _ in range(100):
        chosen = prober.is_due and prober.choose(options(0), lambda _: 0.5)
        if not chosen:
            break
        assert prober.succeeded(10, 2, 2)
        streak += 1
        prober.end_step(0.0)
    assert streak == 1 + MAX_FREE_IN_A_ROW, "one was paid for"


def test_only_a_full_acceptance_of_the_probed_sequence_counts() -> None:
    prober = Prober()
    for _ in range(100):
        prober.end_step(1.0)
    assert prober.choose(options(0), lambda _: 0.5)
    assert not prober.succeeded(11, 2, 2)
    assert not prober.succeeded(10, 2, 1)
    assert not prober.succeeded(10, 0, 0)
    assert prober.succeeded(10, 2, 2)
    prober.end_step(1.0)
    assert not prober.succeeded(10, 2, 2), "the step after is no probe"


def test_deeper_k_is_tried_on_top() -> None:
    prober = Prober()
    prober.end_step(1000.0)
    chosen = prober.choose([ProbeOption(0, 10, 3, 4)], lambda option: 0.1)
    assert chosen is not None
    assert chosen.probe_k == 4
