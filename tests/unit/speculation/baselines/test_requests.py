"""Policies that follow each request: the folk rule, and transformers' heuristic."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from specdec.speculation.baselines import HeuristicPolicy, ThresholdPolicy
from specdec.speculation.baselines.threshold import next_k
from specdec.speculation.controller import Controller
from tests.unit.speculation.baselines.script import outcome, result, sequence, state, step


def ks_with(policy: Controller, rates: Iterable[float], seq_id: int = 1) -> list[int]:
    """The ks planned while the rounds accept these shares, and the one after them."""
    s = sequence(seq_id)
    ks = [step(policy, [s], lambda k, rate=rate: round(rate * k))[0] for rate in rates]
    return [*ks, policy.plan(state([s]))[0]]


@pytest.mark.parametrize(
    ("k", "rate", "following"),
    [
        (5, 0.81, 7), (9, 0.9, 10), (10, 1.0, 10),
        (5, 0.8, 5), (5, 0.61, 5),
        (5, 0.6, 4), (3, 0.41, 3), (2, 0.5, 3),
        (5, 0.4, 3), (3, 0.3, 2), (2, 0.35, 2),
        (5, 0.29, 0), (2, 0.0, 0),
    ],
)  # fmt: skip
def test_folk_rule(k: int, rate: float, following: int) -> None:
    assert next_k(k, rate) == following


def test_folk_rule_judges_a_request_once_it_has_ten_rounds() -> None:
    """9 perfect rounds change nothing; from the tenth on each adds 2, up to 10."""
    assert ks_with(ThresholdPolicy(16, 0.1), [1.0] * 13) == [5] * 10 + [7, 9, 10, 10]


def test_folk_rule_falls_by_a_window_of_ten() -> None:
    """Ten perfect rounds raise K from 5 to 7. Then each failed round takes 0.1 from the mean:
    0.9 -> 9, 0.8 and 0.7 keep it, 0.6 -> 8, 0.5 -> 7, 0.4 -> 5, 0.3 -> 3, 0.2 -> off."""
    ks = ks_with(ThresholdPolicy(16, 0.1), [1.0] * 10 + [0.0] * 8)
    assert ks[10:] == [7, 9, 9, 9, 8, 7, 5, 3, 0]


def test_folk_rule_stays_off_for_that_request_and_begins_anew_for_others() -> None:
    policy = ThresholdPolicy(16, 0.1)
    assert ks_with(policy, [0.0] * 10)[-1] == 0
    assert ks_with(policy, [1.0] * 50)[-1] == 0
    assert ks_with(policy, [], seq_id=2) == [5]
    policy.close(1)
    assert ks_with(policy, [], seq_id=1) == [5]


def test_folk_rule_counts_accepted_over_drafted_not_over_planned() -> None:
    """K = 5, 2 drafted, both accepted: a rate of 1, not of 0.4."""
    policy, s = ThresholdPolicy(16, 0.1), sequence()
    for _ in range(10):
        policy.plan(state([s]))
        policy.observe(result([outcome(s, 5, 2, 2)]))
    assert policy.plan(state([s])) == [7]


@pytest.mark.parametrize("policy", [ThresholdPolicy(16, 0.1), HeuristicPolicy(16, 0.1)])
def test_a_round_without_a_proposal_changes_nothing(policy: Controller) -> None:
    s = sequence()
    before = policy.plan(state([s]))
    for _ in range(30):
        policy.observe(result([outcome(s, before[0], 0, 0)]))
        assert policy.plan(state([s])) == before


def test_requests_do_not_touch_each_other() -> None:
    policy, pair = ThresholdPolicy(16, 0.1), [sequence(1), sequence(2)]
    for _ in range(12):
        ks = policy.plan(state(pair))
        policy.observe(
            result([outcome(pair[0], ks[0], ks[0], ks[0]), outcome(pair[1], ks[1], ks[1], 0)])
        )
    assert policy.plan(state(pair)) == [10, 0]


def test_heuristic_starts_at_twenty_within_the_limit() -> None:
    assert ks_with(HeuristicPolicy(32, 0.1), []) == [20]
    assert ks_with(HeuristicPolicy(8, 0.1), []) == [8]


def test_heuristic_adds_two_or_takes_one() -> None:
    """All accepted: + 2. Anything less: - 1. Never below 1, never above the limit."""
    ks = ks_with(HeuristicPolicy(24, 0.1), [1.0, 1.0, 1.0, 0.95, 0.0, 1.0])
    assert ks == [20, 22, 24, 24, 23, 22, 24]
    assert ks_with(HeuristicPolicy(3, 0.1), [0.0] * 4 + [1.0]) == [3, 2, 1, 1, 1, 3]


def test_heuristic_limit_does_not_wind_up() -> None:
    """After a long run of full acceptance the first miss counts at once."""
    assert ks_with(HeuristicPolicy(8, 0.1), [1.0] * 50 + [0.0])[-1] == 7


def test_heuristic_judges_by_what_was_drafted() -> None:
    """A sequence with room for 2 of K = 20 that accepts both has accepted all."""
    policy, s = HeuristicPolicy(32, 0.1), sequence(max_k=2)
    assert step(policy, [s], lambda k: k) == [2]
    assert policy.plan(state([sequence()])) == [22]
