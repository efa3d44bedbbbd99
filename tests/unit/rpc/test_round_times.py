"""Rounds by hand: when one begins and ends, whose part is whose, and what is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.rpc.round_times import MAX_OPEN_ROUNDS, RoundTime, RoundTimes
from tests.unit.engine.draft_harness import Clock


def taken(times: RoundTimes) -> RoundTime:
    finished, _ = times.take()
    return replace(finished, network_s=round(finished.network_s, 9))


def test_a_round_ends_with_its_last_answer():
    """Asked at 0; the answers come at 30 and 50 ms and were drafted in 20 and 35: the round took
    50, of which the draft 35 and the network 15."""
    clock = Clock()
    times = RoundTimes(clock)
    times.asked([(1, 10, 4), (2, 7, 2)])
    clock.advance(0.030)
    times.answered(1, 10, 4, 0.020)
    assert times.take() == (None, None)
    clock.advance(0.020)
    times.answered(2, 7, 2, 0.035)
    assert taken(times) == RoundTime(4, 6, 0.035, 0.015)
    assert times.take() == (None, None)


def test_a_late_answer_belongs_to_its_own_round():
    clock = Clock()
    times = RoundTimes(clock)
    times.asked([(1, 10, 4)])
    clock.advance(0.1)
    times.asked([(1, 11, 8)])
    clock.advance(0.1)
    times.answered(1, 10, 4, 0.15)
    assert taken(times) == RoundTime(4, 4, 0.15, 0.05)
    times.answered(1, 11, 8, 0.04)
    assert taken(times) == RoundTime(8, 8, 0.04, 0.06)


@pytest.mark.parametrize("told_s", [0.2, 1e9, float("inf")])
def test_no_draft_is_believed_to_have_drafted_longer_than_the_round_took(told_s):
    clock = Clock()
    times = RoundTimes(clock)
    times.asked([(1, 10, 4)])
    clock.advance(0.05)
    times.answered(1, 10, 4, told_s)
    assert taken(times) == RoundTime(4, 4, pytest.approx(0.05), 0.0)


def test_a_round_without_tokens_shows_nothing():
    times = RoundTimes(Clock())
    times.asked([(1, 1, 4)])
    times.answered(1, 1, 0, 0.0)
    assert times.take() == (None, None)
    times.asked([])
    times.answered(9, 9, 1, 0.1)  # never asked
    assert times.take() == (None, None)


def test_what_is_never_answered_is_forgotten():
    times = RoundTimes(Clock())
    for number in range(100):
        times.asked([(1, number, 4), (2, number, 4)])
    assert len(times._open) == MAX_OPEN_ROUNDS
    assert len(times._by_ask) == 2 * MAX_OPEN_ROUNDS
    times.answered(1, 0, 4, 0.1)
    times.answered(2, 0, 4, 0.1)
    assert times.take() == (None, None)


def test_the_newest_heartbeat_is_told_once():
    times = RoundTimes(Clock())
    times.heard(0.003)
    times.heard(0.002)
    assert times.take() == (None, 0.002)
    assert times.take() == (None, None)
