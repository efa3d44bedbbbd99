"""The limit of a wait: finite, near the usual time, more patient after a time-out."""

from __future__ import annotations

import math

import pytest

from specdec.speculation.controller.waiting import WaitPolicy


def test_unknown_times_are_waited_for_up_to_the_cap() -> None:
    policy = WaitPolicy(0.25)
    policy.set(None, 0.0, math.inf)
    assert policy.limit_s == 0.25


def test_limit_is_near_the_usual_time_and_grows_with_its_error() -> None:
    policy = WaitPolicy(0.25)
    policy.set(0.020, 0.0, math.inf)
    steady = policy.limit_s
    policy.set(0.020, 0.5, math.inf)
    assert 0.020 < steady < 0.040 < policy.limit_s <= 0.25


def test_no_longer_beyond_the_usual_time_than_the_proposal_is_worth() -> None:
    policy = WaitPolicy(0.25)
    policy.set(0.100, 0.0, worth_s=0.03)
    assert policy.limit_s == pytest.approx(0.13)


def test_time_outs_double_the_patience_until_the_time_is_seen() -> None:
    """The drafter became slow: 0.2 s where 0.02 s was usual."""
    policy = WaitPolicy(0.25)
    waits = []
    for _ in range(8):
        policy.set(0.020, 0.0, math.inf)
        waits.append(policy.limit_s)
        policy.observe(min(0.2, policy.limit_s))
    assert waits[:4] == pytest.approx([waits[0], 2 * waits[0], 4 * waits[0], 0.25])
    assert policy.num_timeouts < 8


def test_an_uneven_network_is_given_its_time() -> None:
    """Usual 20 ms, p95 of the network 30 ms later: the limit grows by 30 ms less the 2 ms of slack
    that every wait has."""
    policy = WaitPolicy(0.25)
    policy.set(0.020, 0.0, math.inf)
    even = policy.limit_s
    policy.set(0.020, 0.0, math.inf, jitter_s=0.030)
    assert policy.limit_s == pytest.approx(even + 0.028)
