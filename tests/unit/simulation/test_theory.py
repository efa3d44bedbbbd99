"""The closed formulas against another road: every outcome enumerated, series, hand calculation."""

from __future__ import annotations

import math
from itertools import product

import pytest

from specdec.errors import ConfigError
from specdec.simulation import theory

ALPHAS = (0.0, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0)


def tokens_by_enumeration(alpha: float, k: int) -> float:
    """Mean tokens of a round, over all 2^k patterns of accepted and rejected draft tokens."""
    mean = 0.0
    for pattern in product((True, False), repeat=k):
        chance = math.prod(alpha if accepted else 1 - alpha for accepted in pattern)
        num_accepted = pattern.index(False) if False in pattern else k
        mean += chance * (num_accepted + 1)
    return mean


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [0, 1, 2, 5, 9])
def test_expected_tokens_are_the_mean_over_all_outcomes(alpha, k):
    assert theory.expected_tokens(alpha, k) == pytest.approx(tokens_by_enumeration(alpha, k))


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.7, 0.95])
def test_expected_tokens_equal_the_printed_formula(alpha):
    for k in range(theory.MAX_K + 1):
        assert theory.expected_tokens(alpha, k) == pytest.approx(
            (1 - alpha ** (k + 1)) / (1 - alpha)
        )


def test_figures_of_the_worked_example():
    # 1 + 0.7 + 0.49 + 0.343 + 0.2401 = 2.7731, over 1 + 4 * 0.05 = 1.2; operations: 4 * 0.05 + 5.
    assert theory.expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert theory.speedup(0.7, 4, 0.05) == pytest.approx(2.7731 / 1.2)
    assert theory.arithmetic_inflation(0.7, 4, 0.05) == pytest.approx(5.2 / 2.7731)


def test_acceptance_is_the_chance_that_the_rejection_rule_accepts():
    target, draft = [0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]
    by_rule = sum(d * min(1.0, t / d) for t, d in zip(target, draft, strict=True))
    assert theory.acceptance_of(target, draft) == pytest.approx(by_rule)
    distance = sum(abs(t - d) for t, d in zip(target, draft, strict=True)) / 2
    assert theory.acceptance_of(target, draft) == pytest.approx(1 - distance)


@pytest.mark.parametrize("cost", [0.0, 0.05, 0.3, 0.8, 1.2])
def test_some_k_is_faster_exactly_where_acceptance_exceeds_the_cost(cost):
    for alpha in (0.0, 0.04, 0.06, 0.29, 0.31, 0.79, 0.81, 1.0):
        gains = [theory.speedup(alpha, k, cost) for k in range(65)]
        assert theory.improves(alpha, cost) == (max(gains) > 1)
        if theory.improves(alpha, cost):
            assert max(gains) >= theory.least_gain(alpha, cost) == (1 + alpha) / (1 + cost)
        assert theory.best_k(alpha, cost, 64) == gains.index(max(gains))


@pytest.mark.parametrize("k", [1, 2, 4, 16])
@pytest.mark.parametrize("cost", [0.01, 0.05, 0.5, 1.0])
def test_at_the_break_even_acceptance_the_speedup_is_one(k, cost):
    alpha = theory.break_even_acceptance(k, cost)
    assert theory.speedup(alpha, k, cost) == pytest.approx(1.0)
    if k == 1:
        assert alpha == pytest.approx(cost)  # (1 + alpha) / (1 + cost) = 1
    if k == 2:  # alpha^2 + alpha = 2 cost
        assert alpha == pytest.approx((math.sqrt(1 + 8 * cost) - 1) / 2)


def test_no_acceptance_pays_for_a_draft_slower_than_its_target():
    assert theory.break_even_acceptance(3, 1.01) is None
    assert theory.break_even_acceptance(0, 1.01) == 0.0
    assert theory.break_even_acceptance(3, 0.0) == 0.0


def run_ahead_by_series(alpha: float, cost: float, network: float) -> float:
    """Mean tokens over mean time of the cycles between two rejections, summed term by term.

    A cycle of n tokens (n - 1 accepted, then the recovered one) has chance alpha^(n-1) (1-alpha);
    it takes n draft steps, then a verification and a round trip.
    """
    chances = [(n, alpha ** (n - 1) * (1 - alpha)) for n in range(1, 5000)]
    tokens = sum(n * chance for n, chance in chances)
    seconds = sum((n * cost + 1 + network) * chance for n, chance in chances)
    return tokens / seconds


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.7, 0.95])
@pytest.mark.parametrize(("cost", "network"), [(0.0, 0.0), (0.05, 0.0), (0.1, 0.5)])
def test_the_asynchronous_limit_is_the_mean_cycle(alpha, cost, network):
    by_series = run_ahead_by_series(alpha, cost, network)
    assert theory.asynchronous_limit(alpha, cost, network) == pytest.approx(by_series)


def test_limits_meet_where_they_must():
    # A free draft that runs ahead is the synchronous draft with endless K.
    assert theory.asynchronous_limit(0.8, 0.0, 0.0) == pytest.approx(theory.free_draft_limit(0.8))
    assert theory.speedup(0.8, 128, 0.0) == pytest.approx(theory.free_draft_limit(0.8), rel=1e-9)
    assert theory.free_draft_limit(1.0) == theory.asynchronous_limit(1.0, 0.0, 0.3) == math.inf
    assert theory.remote_speedup(0.7, 4, 0.05, 0.0) == theory.speedup(0.7, 4, 0.05)
    # 2.7731 tokens over 0.2 drafting + 0.3 network + 1.
    assert theory.remote_speedup(0.7, 4, 0.05, 0.3) == pytest.approx(2.7731 / 1.5)
    assert theory.remote_speedup(0.7, 0, 0.05, 0.3) == 1.0


def test_prepared_drafts_by_hand():
    # A hit (0.75): 2.7731 tokens in one step; a miss: one token in one step.
    assert theory.enumeration_speedup(0.7, 4, 0.05, 0.75) == pytest.approx(0.75 * 2.7731 + 0.25)
    # 4 draft steps of 0.5 take two target steps, and the hit waits for them: 2 * 0.75 + 0.25.
    slow = theory.enumeration_speedup(0.7, 4, 0.5, 0.75)
    assert slow == pytest.approx((0.75 * 2.7731 + 0.25) / 1.75)
    assert theory.enumeration_speedup(0.7, 4, 0.5, 0.0) == 1.0


def test_timing_rules_by_hand():
    assert theory.hidden_draft_tokens(2.54 / 11.45) == 4  # 4 * 2.54 = 10.16 ms fit in 11.45 ms
    assert theory.targets_per_drafter(4, 1.2 / 18) == 3  # 4 * 1.2 ms = 4.8 ms, 18 / 4.8 = 3.75
    for denominator in range(1, 200):  # exact fits survive rounding
        assert theory.hidden_draft_tokens(1 / denominator) == denominator
        assert theory.targets_per_drafter(3, 1 / (3 * denominator)) == denominator
    assert theory.hidden_draft_tokens(5e-324) is None  # as good as free
    assert theory.hidden_draft_tokens(0.0) is theory.targets_per_drafter(4, 0.0) is None
    assert theory.targets_per_drafter(0, 0.1) is None


def test_serving_with_free_verification_is_the_walltime_theorem():
    gain = theory.serving_speedup(0.7, 4, 64, lambda tokens: 1.0, 0.05)
    assert gain == pytest.approx(theory.speedup(0.7, 4, 0.05))


def test_serving_break_even_by_hand():
    def line(tokens: float) -> float:
        return 10 + 0.1 * tokens

    # 50 sequences: 10 + 5 = 15 ms; with K = 3, 200 tokens: 10 + 20 + 3 * 1 + 2 = 35 ms.
    needed = theory.serving_break_even_tokens(3, 50, line, cost=1.0, network=2.0)
    assert needed == pytest.approx(35 / 15)
    gain = theory.serving_speedup(0.6, 3, 50, line, cost=1.0, network=2.0)
    assert gain == pytest.approx((1 + 0.6 + 0.36 + 0.216) / (35 / 15))
    assert theory.serving_speedup(0.6, 0, 50, line, cost=1.0, network=2.0) == 1.0


def test_where_arithmetic_is_the_limit_every_draft_token_costs_its_share():
    curve = theory.roofline(295)
    assert curve(0) == 1.0
    assert curve(295) == pytest.approx(math.sqrt(2))
    # Far above the knee the time is the number of tokens: tokens per round over k + 1, below 1.
    gain = theory.serving_speedup(0.9, 4, 10**6, curve, 0.0)
    assert gain == pytest.approx(theory.expected_tokens(0.9, 4) / 5, rel=1e-6)


def test_largest_free_k():
    # 64 sequences of K + 1 = 4 tokens are 256, of 5 are 320; the knee is at 295.
    assert [theory.largest_free_k(295, batch) for batch in (1, 64, 128, 200, 400)] == [
        294,
        3,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("alpha", lambda: theory.expected_tokens(1.01, 2)),
        ("alpha", lambda: theory.expected_tokens(math.nan, 2)),
        ("k", lambda: theory.speedup(0.5, -1, 0.1)),
        ("k", lambda: theory.speedup(0.5, theory.MAX_K + 1, 0.1)),
        ("cost", lambda: theory.speedup(0.5, 1, math.inf)),
        ("cost", lambda: theory.break_even_acceptance(1, -0.1)),
        ("network", lambda: theory.asynchronous_limit(0.5, 0.1, -1)),
        ("hit_rate", lambda: theory.enumeration_speedup(0.5, 1, 0.1, 1.5)),
        ("knee", lambda: theory.roofline(0)),
        ("batch", lambda: theory.largest_free_k(295, 0)),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, call):
    with pytest.raises(ConfigError, match=f"^{field} must be") as caught:
        call()
    assert caught.value.field == field
