"""SGLang's tiers, averages and hysteresis."""

from __future__ import annotations

import pytest

from specdec.speculation.baselines.sglang import EmaPolicy, Slot, Tier
from tests.unit.speculation.baselines.script import batch_of, outcome, result, state, steps


def slot_at(k: int, average: float, tier: Tier) -> Slot:
    """A slot that decides at the next batch, its average unchanged by that batch."""
    slot = Slot(tier)
    for _ in range(14):
        slot.observe(None)
    slot.k, slot.average = k, average
    slot.observe(None)
    return slot


FIRST = Tier((1, 3, 5, 7), down=-0.25)
SECOND = Tier((0, 1, 3))


@pytest.mark.parametrize(
    ("k", "average", "following"),
    [
        # Up while the average exceeds K - 0.5.
        (3, 2.5, 3), (3, 2.51, 5), (1, 0.51, 3), (1, 4.6, 7), (7, 7.0, 7),
        # Down while it is at most the candidate below - 0.5 - 0.25.
        (3, 0.26, 3), (3, 0.25, 1), (5, 2.25, 3), (5, 2.26, 5), (7, 4.25, 5), (7, 0.0, 1),
        (1, 0.0, 1),
    ],
)  # fmt: skip
def test_first_tier(k: int, average: float, following: int) -> None:
    assert slot_at(k, average, FIRST).k == following


@pytest.mark.parametrize(
    ("k", "average", "following"),
    [
        # Up while the average exceeds K - 0.5; to 1 at 0.5 - which is where 0 is enough, too.
        (1, 0.51, 3), (1, 0.5, 0), (3, 0.51, 3), (3, 0.5, 0), (3, 2.9, 3),
        # From 0 to the smallest candidate above it, always.
        (0, 0.0, 1), (0, 0.3, 1),
    ],
)  # fmt: skip
def test_tiers_with_zero(k: int, average: float, following: int) -> None:
    assert slot_at(k, average, SECOND).k == following


def test_average_and_times_of_decisions() -> None:
    """K = 3, average 2 at first. With 0 accepted it is 2 x 0.8^n after n batches; decisions come
    at 15, 20 ...: 2 x 0.8^15 = 0.070 <= 0.25, so K = 1 from step 16 on."""
    policy = EmaPolicy(8, 0.1)
    assert steps(policy, 1, lambda k: 0, 16) == [3] * 15 + [1]
    # The step at K = 1 is the 16th.
    assert policy.snapshot()["average_accepted"] == pytest.approx(2 * 0.8**16)


def test_full_acceptance_climbs_one_candidate_per_decision() -> None:
    """The average passes K - 0.5 only where K draft tokens could be accepted: at the decision
    after 15 batches 3 - 0.8^15 = 2.96 > 2.5 leads to 5; 5 batches later 5 - 2.04 x 0.8^5 = 4.33
    is not yet above 4.5; another 5 later 4.78 is."""
    ks = steps(EmaPolicy(8, 0.1), 1, lambda k: k, 26)
    assert ks == [3] * 15 + [5] * 10 + [7]


def test_between_the_thresholds_nothing_moves() -> None:
    """At K = 3, an average anywhere in (0.25, 2.5] is left alone: alternating 0 and 2 accepted."""
    policy, draws = EmaPolicy(8, 0.1), [0, 2]
    ks = [steps(policy, 1, lambda k, n=number: draws[n % 2], 1)[0] for number in range(200)]
    assert set(ks) == {3}


def test_zero_is_probed_at_every_decision() -> None:
    """16 sequences, nothing accepted: 3, then 0; every second decision is a probe of 5 batches."""
    ks = steps(EmaPolicy(8, 0.1), 16, lambda k: 0, 35)
    assert ks == [3] * 15 + [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5


def test_a_probe_that_succeeds_brings_speculation_back() -> None:
    """After the fall to 0 at an average of 2 x 0.8^15 = 0.07, 5 batches at K = 1 with 1 accepted
    give 1 - 0.93 x 0.8^5 = 0.695 > 0.5: K = 3."""
    policy = EmaPolicy(8, 0.1)
    assert steps(policy, 16, lambda k: 0, 20)[-1] == 0
    assert steps(policy, 16, lambda k: k, 6) == [1] * 5 + [3]


@pytest.mark.parametrize(
    ("batch", "k"), [(1, 3), (7, 3), (8, 3), (31, 3), (32, 1), (63, 1), (64, 0), (256, 0)]
)
def test_first_k_of_each_tier(batch: int, k: int) -> None:
    assert steps(EmaPolicy(8, 0.1), batch, lambda k: 0, 1) == [k]


def test_above_64_sequences_speculation_never_starts() -> None:
    assert set(steps(EmaPolicy(8, 0.1), 64, lambda k: k, 60)) == {0}


def test_tiers_learn_apart() -> None:
    policy = EmaPolicy(8, 0.1)
    steps(policy, 4, lambda k: 0, 15)
    assert steps(policy, 4, lambda k: 0, 1) == [1]
    assert steps(policy, 16, lambda k: 0, 1) == [3]


def test_the_mean_is_over_the_sequences_asked() -> None:
    """Accepted 0 and 3 of 3: the average goes from 2 to 0.8 x 2 + 0.2 x 1.5."""
    policy, pair = EmaPolicy(8, 0.1), batch_of(2)
    policy.plan(state(pair))
    policy.observe(result([outcome(pair[0], 3, 3, 0), outcome(pair[1], 3, 3, 3)]))
    assert policy.snapshot()["average_accepted"] == pytest.approx(1.9)
