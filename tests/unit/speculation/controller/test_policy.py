"""The decision against closed formulas and against the enumeration of all choices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.speculation.controller.policy import (
    Candidates,
    Decision,
    ProposeCost,
    StepCosts,
    decide,
)

Rows = list[list[float]]


def solve(
    acceptance: Rows,
    run_s: Callable[[int], float],
    step_s: float = 0.0,
    max_k: list[int] | None = None,
    fixed: list[int] | None = None,
    required: float = 1.0,
    keep_depth: int | None = None,
    excused_s: float = 0.0,
) -> Decision:
    """Decide for sequences with these conditional acceptances, and `step_s` for a draft step."""
    rows, columns = len(acceptance), len(acceptance[0])
    limits = max_k if max_k is not None else [columns] * rows
    return decide(
        Candidates(
            np.cumprod(np.array(acceptance), axis=1),
            np.array(limits),
            np.zeros(rows, dtype=np.int64),
        ),
        np.array(fixed or [0] * rows),
        StepCosts(
            run_s=lambda added: np.array([run_s(rows + int(n)) for n in added]),
            propose=(ProposeCost(step_s * np.arange(columns + 1), 0.0),),
            excused_s=excused_s,
        ),
        required,
        keep_depth,
    )


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("c", [0.02, 0.1, 0.3])
def test_one_sequence_reaches_the_optimum_of_leviathan(alpha: float, c: float) -> None:
    """Theorem 3.8: speed-up (1 - alpha^(K+1)) / ((1 - alpha)(K c + 1)), verification free."""
    speed_up = [(1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1)) for k in range(9)]
    decision = solve([[alpha] * 8], lambda n: 1.0, step_s=c)
    k = int(decision.ks[0])
    assert speed_up[k] >= 0.98 * max(speed_up)  # depths 5 and 7 are not tried
    assert decision.gain == pytest.approx(speed_up[k])


def test_corollary_3_9_no_k_helps_unless_alpha_exceeds_c() -> None:
    assert solve([[0.29] * 8], lambda n: 1.0, step_s=0.3).ks.tolist() == [0]
    assert solve([[0.32] * 8], lambda n: 1.0, step_s=0.3).ks.tolist() == [1]


def test_position_is_kept_iff_its_survival_exceeds_the_shadow_price() -> None:
    """Linear cost: lambda = goodput * dT/dn separates what is drafted from what is not."""
    acceptance = [[0.9] * 8, [0.6] * 8, [0.2] * 8]
    decision = solve(acceptance, lambda n: 1.0 + 0.05 * n)
    assert decision.shadow_price == pytest.approx(0.05 * decision.goodput)
    for row, k in zip(np.cumprod(acceptance, axis=1), decision.ks, strict=True):
        assert (row[:k] > decision.shadow_price).all()
        assert (row[k:] < decision.shadow_price).all()


def test_two_sequences_in_one_batch_get_different_k() -> None:
    ks = solve([[0.95] * 8, [0.1] * 8], lambda n: 1.0 + 0.06 * n, step_s=0.02).ks
    assert ks[0] >= 4
    assert ks[1] == 0


def test_staircase_takes_the_global_maximum_not_the_first_descent() -> None:
    """The first two draft tokens cost a whole stair and do not pay alone; those after them are
    free up to the next stair."""
    stair = lambda n: 1.0 + 0.95 * (n > 1) + 5.0 * (n > 7)  # noqa: E731
    scores = [sum(0.9**j for j in range(k + 1)) / stair(k + 1) for k in range(9)]
    assert scores[1] < scores[0], "the score falls first"
    assert solve([[0.9] * 8], stair).ks.tolist() == [int(np.argmax(scores))] == [6]


def test_load_lowers_k() -> None:
    """A step that is bound by reading weights up to 16 tokens, by arithmetic beyond."""
    cost = lambda n: 1.0 + 0.06 * max(0, n - 16)  # noqa: E731
    ks = [int(solve([[0.8] * 8] * batch, cost).ks.max()) for batch in (1, 4, 16)]
    assert ks[0] == 8
    assert ks[0] > ks[1] > ks[2]


def test_prefill_beside_the_decodes_is_not_their_cost() -> None:
    """300 prefill tokens on a linear cost change nothing about the worth of a draft token."""
    alone = solve([[0.7] * 8], lambda n: 1.0 + 0.1 * n)
    beside = solve([[0.7] * 8], lambda n: 1.0 + 0.1 * (n + 300), excused_s=30.0)
    assert beside.ks.tolist() == alone.ks.tolist()
    assert 0 < alone.ks[0] < 8


def test_fixed_k_is_honoured_and_pays_for_the_depth() -> None:
    """Beside a sequence that drafts 4 in any case, draft steps cost the other nothing."""
    rows = [[0.4] * 8, [0.4] * 8]
    assert solve(rows, lambda n: 1.0, step_s=0.7).ks.tolist() == [0, 0]
    beside = solve(rows, lambda n: 1.0, step_s=0.7, max_k=[0, 8], fixed=[4, 0])
    assert beside.ks.tolist()[0] == 4
    assert 1 <= beside.ks[1] <= 4


def test_limits_and_no_candidates() -> None:
    rows = [[0.9] * 8] * 3
    assert solve(rows, lambda n: 1.0, max_k=[2, 0, 5]).ks.tolist() == [2, 0, 5]
    assert solve(rows, lambda n: 1.0, max_k=[0, 0, 0]).ks.tolist() == [0, 0, 0]


def test_a_small_gain_does_not_switch_on() -> None:
    """k = 1 gains 0.5 tokens in time worth 0.45: a return of 1.11."""
    costs = {"run_s": lambda n: 1.0, "step_s": 0.45, "max_k": [1]}
    assert solve([[0.5]], required=1.05, **costs).ks.tolist() == [1]
    assert solve([[0.5]], required=1.2, **costs).ks.tolist() == [0]


TIE = 0.2377  # of K = 3 and K = 4 at alpha = 0.8


def test_depth_does_not_flap_on_a_tie() -> None:
    speed = [sum(0.8**j for j in range(k + 1)) / (1 + TIE * k) for k in range(9)]
    assert abs(speed[3] / speed[4] - 1) < 0.01
    for last in (3, 4):
        ks = solve([[0.8] * 8], lambda n: 1.0, step_s=TIE, keep_depth=last, max_k=[4]).ks
        assert ks.tolist() == [last]


increasing = st.lists(st.floats(0, 0.5), min_size=13, max_size=13).map(
    lambda steps: list(itertools.accumulate([1.0, *steps]))
)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0.05, 0.99), min_size=3, max_size=3), min_size=1, max_size=3),
    increasing,
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_no_choice_of_ks_is_better(acceptance: Rows, costs: list[float], step_s: float) -> None:
    """Enumerate every (k_1, ..., k_B) with K <= 3 on a random staircase."""
    survival = np.cumprod(acceptance, axis=1)
    decision = solve(acceptance, lambda n: costs[min(n, 13)], step_s=step_s, required=0.0)
    best = 0.0
    for ks in itertools.product(range(4), repeat=len(acceptance)):
        tokens = len(ks) + sum(row[:k].sum() for row, k in zip(survival, ks, strict=True))
        seconds = costs[min(len(ks) + sum(ks), 13)] + step_s * max(ks)
        best = max(best, tokens / seconds)
    # Positions of survival under 0.02 are never drafted: at most 9 of them are given up.
    assert decision.goodput >= 0.9 * best if (survival < 0.02).any() else 0.999999 * best


def test_what_was_offered_is_told_also_where_it_was_not_taken() -> None:
    """One sequence, a step of 1 s, 0.2 s for a draft step, acceptance 0.5: one token deep gives
    1.5 / 1.2 = 1.25 times plain speed, two deep 1.75 / 1.4 = 1.25 as well."""
    taken = solve([[0.5, 0.5]], lambda n: 1.0, step_s=0.2)
    assert taken.ks.sum() > 0
    assert taken.offered_gain == pytest.approx(1.25)
    # 0.5 tokens for 0.2 s, which would have given 0.2: a return of 2.5.
    refused = solve([[0.5, 0.5]], lambda n: 1.0, step_s=0.2, required=2.6)
    assert refused.ks.sum() == 0
    assert (refused.gain, refused.offered_gain) == (1.0, pytest.approx(1.25))


def test_where_nothing_pays_one_token_deep_is_told() -> None:
    """Two sequences of acceptance 0.2 and 0.1, 0.5 s for a draft step: one deep at best gives
    (2 + 0.3) / 1.5 over 2 / 1."""
    decision = solve([[0.2, 0.2], [0.1, 0.1]], lambda n: 1.0, step_s=0.5)
    assert decision.ks.sum() == 0
    assert decision.offered_gain == pytest.approx(2.3 / 1.5 / 2)
    nothing = solve([[0.5]], lambda n: 1.0, max_k=[0])
    assert nothing.offered_gain == 1.0
