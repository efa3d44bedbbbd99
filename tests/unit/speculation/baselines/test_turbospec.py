"""TurboSpec's goodput: the regression, the scan, the bonus of no speculation, prompt lookup."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from specdec.speculation.baselines import TurboSpecPolicy
from specdec.speculation.baselines.regression import LinearTimes
from specdec.speculation.controller import Controller, CostSeed, DraftPoint, ProfilePoint, Seeded
from tests.unit.speculation.baselines.script import batch_of, outcome, result, sequence, state

Seconds = Callable[[int], float]


def linear(num_tokens: int) -> float:
    """10 ms, and 1 ms for each token: at one sequence draft tokens are cheap, at many dear."""
    return 0.010 + 0.001 * num_tokens


def propose(k: int) -> float:
    return 0.001 * k


def run(
    policy: Controller,
    size: int,
    rate: float,
    count: int,
    target_s: Seconds = linear,
    drafter: str = "draft",
) -> list[int]:
    """ks of `count` steps in which the share `rate` of every draft is accepted."""
    sequences, ks = batch_of(size, drafter), []
    for _ in range(count):
        planned = policy.plan(state(sequences, 100 * size))
        k = planned[0]
        ks.append(k)
        policy.observe(
            result(
                [outcome(s, k, k, round(rate * k)) for s in sequences],
                100 * size,
                propose(k),
                target_s(size * (1 + k)),
            )
        )
    return ks


def first_decision(policy: Controller, size: int) -> int:
    """K in the twentieth step, while nothing is learned."""
    batch = state(batch_of(size), 100 * size)
    return [policy.plan(batch)[0] for _ in range(20)][-1]


def default_seed() -> CostSeed:
    """What was measured beforehand, at two amounts of cached text."""
    return CostSeed(
        steps=tuple(
            ProfilePoint(n, num_kv, linear(n)) for n in (1, 8, 64, 256) for num_kv in (0, 4096)
        ),
        drafts={
            name: tuple(DraftPoint(n, k, propose(k)) for n in (1, 8, 64) for k in (1, 2, 4))
            for name in ("draft", "ngram")
        },
    )


def seeded(max_k: int, acceptance: float = 0.7, seed: CostSeed | None = None) -> TurboSpecPolicy:
    policy = TurboSpecPolicy(max_k, 0.1, acceptance)
    policy.seed(seed or default_seed())
    return policy


def expected_k(batch: int, acceptance: float, max_k: int) -> int:
    """The best K by the formula, found over all K instead of by a scan."""

    def goodput(k: int) -> float:
        tokens = batch * sum(acceptance**j for j in range(k + 1))
        seconds = linear(batch * (1 + k)) + propose(k)
        return tokens / seconds * (1.1 if k == 0 else 1.0)

    return max(range(max_k + 1), key=goodput)


@pytest.mark.parametrize("batch", [1, 4, 8, 12, 64])
def test_first_decision_is_the_best_k_at_the_initial_acceptance(batch: int) -> None:
    """Where the goodput has one peak, the scan finds the maximum; both ends occur."""
    assert first_decision(seeded(16), batch) == expected_k(batch, 0.7, 16)


def test_cases_of_the_formula_differ() -> None:
    assert expected_k(1, 0.7, 16) > expected_k(8, 0.7, 16) > expected_k(64, 0.7, 16) == 0


def test_decides_every_twenty_steps_and_from_a_seed_starts_at_zero() -> None:
    """One sequence, everything accepted: the acceptance rate tends to 1, and K to the limit."""
    ks = run(seeded(6), 1, 1.0, 60)
    first = expected_k(1, 0.7, 6)
    assert ks[:19] == [0] * 19
    assert ks[19:39] == [first] * 20
    assert ks[39:] == [6] * 21


def test_without_a_seed_the_first_steps_measure() -> None:
    """K goes through 0..4; what it learned gives the decision that the seed gives."""
    ks = run(TurboSpecPolicy(16, 0.1), 4, 0.7, 20)
    assert ks[:10] == [1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    policy = TurboSpecPolicy(16, 0.1)
    run(policy, 4, 0.7, 19)
    acceptance = policy.snapshot()["acceptance"]
    assert isinstance(acceptance, float)
    assert ks[19] == expected_k(4, acceptance, 16)


def test_it_can_start_from_measured_times() -> None:
    policy = TurboSpecPolicy(8, 0.1)
    assert isinstance(policy, Seeded)
    assert not policy.knows_steps
    policy.seed(default_seed())
    assert policy.knows_steps


def test_target_times_alone_do_not_spare_the_calibration() -> None:
    policy = seeded(8, seed=CostSeed(steps=default_seed().steps))
    assert run(policy, 4, 0.7, 5) == [1, 2, 3, 4, 0]


def test_time_of_two_drafters_at_once_is_charged_to_neither() -> None:
    """One proposes at once, the other takes 2 ms; together they were seen to take 50 ms."""
    policy = TurboSpecPolicy(8, 0.1)
    policy.seed(CostSeed(drafts={"ngram": (DraftPoint(1, 2, 0.0),)}))
    policy.seed(CostSeed(drafts={"draft": (DraftPoint(1, 2, 0.002),)}))
    pair = [sequence(0), sequence(1, drafter="ngram")]
    policy.plan(state(pair))
    policy.observe(result([outcome(s, 2, 2, 2) for s in pair], 100, 0.050, 0.010))
    tokens = 2 + 2 * sum(float(str(policy.snapshot()["acceptance"])) ** j for j in (1, 2))
    assert policy.goodput(2, state(pair)) == pytest.approx(tokens / (0.010 + 0.002))


def test_acceptance_is_a_running_average() -> None:
    """0.7, then 0.85 x 0.7 + 0.15 x 1 / 2; a step without drafts changes nothing."""
    policy, pair = TurboSpecPolicy(8, 0.1), batch_of(2)
    policy.plan(state(pair))
    policy.observe(result([outcome(pair[0], 2, 2, 0), outcome(pair[1], 2, 2, 2)]))
    assert policy.snapshot()["acceptance"] == pytest.approx(0.67)
    policy.plan(state(pair))
    policy.observe(result([outcome(pair[0], 0, 0, 0), outcome(pair[1], 2, 0, 0)]))
    assert policy.snapshot()["acceptance"] == pytest.approx(0.67)


@pytest.mark.parametrize(("acceptance", "k"), [(0.31, 0), (0.33, 1)])
def test_speculation_must_promise_ten_percent(acceptance: float, k: int) -> None:
    """A step takes 10 ms, + 2 ms for a draft token: K = 1 gives (1 + a) / 12 against 1.1 / 10,
    so that it pays from a = 0.32 on."""
    measured = CostSeed(
        steps=tuple(ProfilePoint(n, 0, 0.009 + 0.001 * n) for n in (1, 2, 3)),
        drafts={"draft": (DraftPoint(1, 1, 0.001), DraftPoint(1, 2, 0.002))},
    )
    assert first_decision(seeded(1, acceptance, measured), 1) == k


def test_the_scan_stops_at_the_first_k_that_is_no_better() -> None:
    """Its known weakness. Drafting costs 20 ms at once and nothing per token, so that K = 1 loses
    and K = 8 would win: (1 - 0.9^9) / 0.1 / 30 = 0.204 against 1.1 / 10 and 1.9 / 30 = 0.063."""
    measured = CostSeed(
        steps=tuple(ProfilePoint(n, 0, 0.010) for n in (1, 2, 4, 8)),
        drafts={"draft": tuple(DraftPoint(1, k, 0.020) for k in (1, 2, 4, 8))},
    )
    policy, batch = seeded(8, 0.9, measured), state(batch_of(1))
    assert policy.goodput(8, batch) > 1.1 * policy.goodput(0, batch)
    assert first_decision(policy, 1) == 0


def test_it_does_not_come_back_while_the_load_stays() -> None:
    """Nothing is drafted at K = 0, so the acceptance rate stays where it was."""
    policy = seeded(8)
    run(policy, 1, 0.7, 40)
    assert run(policy, 1, 0.0, 100)[-1] == 0
    assert set(run(policy, 1, 1.0, 200)) == {0}


def test_prompt_lookup_counts_the_share_that_has_a_match() -> None:
    """At half of four sequences matching, K = 2 and a = 0.7: 4 + 2 x (0.7 + 0.49) tokens from
    4 + 2 x 2 verified ones, which take 18 ms, after 2 ms of drafting. A draft model proposes for
    all four: 4 + 4 x 1.19 tokens, from 12 in 22 + 2 ms."""
    policy = seeded(8)
    lookup, model = (state(batch_of(4, drafter), 400) for drafter in ("ngram", "draft"))
    assert policy.goodput(2, lookup) == pytest.approx((4 + 2 * 1.19) / 0.020)
    assert policy.goodput(2, model) == pytest.approx((4 + 4 * 1.19) / 0.024)


def test_match_ratio_is_a_running_average() -> None:
    """Two of four had a match: 0.5 stays; then none: 0.85 x 0.5."""
    policy, four = TurboSpecPolicy(8, 0.1), batch_of(4, "ngram")
    for drafted, ratio in (([2, 0, 1, 0], 0.5), ([0, 0, 0, 0], 0.425)):
        policy.plan(state(four))
        policy.observe(result([outcome(s, 2, d, 0) for s, d in zip(four, drafted, strict=True)]))
        assert policy.snapshot()["match_ratio"] == pytest.approx(ratio)


def test_prompt_lookup_is_limited_to_eight_tokens_and_32_sequences() -> None:
    def free(num_tokens: int) -> float:
        return 0.010

    assert run(TurboSpecPolicy(16, 0.1), 32, 1.0, 60, free, "ngram")[-1] == 8
    assert run(TurboSpecPolicy(16, 0.1), 33, 1.0, 60, free, "ngram")[-1] == 0


def test_regression_equals_least_squares_over_all_observations() -> None:
    draws = np.random.default_rng(3)
    features = draws.uniform([1, 1, 100], [64, 600, 200_000], (300, 3))
    seconds = features @ [1e-4, 2e-5, 3e-8] + 0.006 + draws.normal(0, 1e-4, 300)
    times = LinearTimes(3)
    for row, value in zip(features, seconds, strict=True):
        times.observe(tuple(row), value)
    design = np.column_stack([np.ones(300), features])
    reference = np.linalg.lstsq(design, seconds, rcond=None)[0]
    at = (20.0, 100.0, 40_000.0)
    assert times.predict(at) == pytest.approx(float(reference @ [1, *at]), rel=1e-9)


def test_what_never_varied_has_no_slope() -> None:
    times = LinearTimes(2)
    for x in (1.0, 2.0, 3.0):
        times.observe((8.0, x), 0.010 + 0.001 * x)
    assert times.predict((100.0, 4.0)) == pytest.approx(0.014)
    assert times.predict((8.0, -100.0)) == 0.0
