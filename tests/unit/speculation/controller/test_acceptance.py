"""Acceptance estimates against counts made by hand and against the law that drew the outcomes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec.speculation.controller.acceptance import (
    DRAFTER_DECAY,
    LOOKUP_PRIOR,
    MODEL_PRIOR,
    PRIOR_WEIGHT,
    REQUEST_DECAY,
    AcceptanceModel,
)


def draw(rng: random.Random, acceptance: list[float], drafted: int) -> int:
    accepted = 0
    while accepted < drafted and rng.random() < acceptance[accepted]:
        accepted += 1
    return accepted


def test_unseen_drafter_has_its_prior() -> None:
    model = AcceptanceModel(4)
    assert model.survival("draft", [1])[0] == pytest.approx(np.cumprod([0.78, 0.8, 0.8, 0.8]))
    lookup = np.cumprod(LOOKUP_PRIOR.acceptance[0])
    assert model.survival("ngram", [1])[0] == pytest.approx(lookup)


def test_counts_are_censored_behind_the_first_rejection() -> None:
    """3 drafted, 1 accepted: one success at 1, one failure at 2, nothing known of 3."""
    model = AcceptanceModel(3)
    model.record("draft", [1], [3], [1])
    weight = MODEL_PRIOR.request_weight
    shared = np.array(
        [
            (PRIOR_WEIGHT * 0.78 + 1) / (PRIOR_WEIGHT + 1),
            (PRIOR_WEIGHT * 0.8) / (PRIOR_WEIGHT + 1),
            0.8,
        ]
    )
    ratio = min(1.0, (1 + 8) / (shared[0] + shared[1] + 8))
    own = [
        (weight * ratio * shared[0] + 1) / (weight + 1),
        (weight * ratio * shared[1]) / (weight + 1),
        ratio * shared[2],
    ]
    assert model.survival("draft", [1])[0] == pytest.approx(np.cumprod(own))
    other = model.survival("draft", [2])[0]
    assert other == pytest.approx(np.cumprod(shared)), "a new request has the drafter's average"


def test_all_drafted_tokens_accepted_are_no_failure_behind_them() -> None:
    model = AcceptanceModel(3)
    before = model.survival("draft", [1])[0]
    model.record("draft", [1], [2], [2])
    after = model.survival("draft", [1])[0]
    assert (after[:2] > before[:2]).all()
    assert after[2] / after[1] == pytest.approx(before[2] / before[1])


@pytest.mark.parametrize("acceptance", [[0.9, 0.5, 0.7, 0.3], [0.2, 0.9, 0.9, 0.9]])
def test_estimates_reach_the_law_of_the_outcomes(acceptance: list[float]) -> None:
    rng = random.Random(5)
    model = AcceptanceModel(4)
    survivals = []
    for step in range(6000):
        model.record("draft", [1], [4], [draw(rng, acceptance, 4)])
        if step > 1000 and step % 10 == 0:
            survivals.append(model.survival("draft", [1])[0])
    assert np.mean(survivals, axis=0) == pytest.approx(np.cumprod(acceptance), abs=0.03)


def test_requests_of_one_drafter_are_told_apart() -> None:
    rng = random.Random(6)
    model = AcceptanceModel(4)
    for _ in range(300):
        accepted = [draw(rng, [alpha] * 4, 4) for alpha in (0.95, 0.1)]
        model.record("draft", [1, 2], [4, 4], accepted)
    good, bad = model.survival("draft", [1, 2])
    assert good[0] > 0.8
    assert good[3] > 0.6
    assert bad[0] < 0.3
    assert bad[1] < 0.1, "positions hardly ever reached follow the request, not the others"


def test_lookup_depends_on_the_last_outcome() -> None:
    """Runs of full acceptance and runs of none: each predicts its own kind."""
    model = AcceptanceModel(2)
    for _ in range(60):
        for accepted in (2, 2, 2, 0, 0, 0):
            model.record("ngram", [1], [2], [accepted])
    model.record("ngram", [1], [2], [2])
    after_full = model.survival("ngram", [1])[0, 0]
    model.record("ngram", [1], [2], [0])
    after_miss = model.survival("ngram", [1])[0, 0]
    assert after_full == pytest.approx(2 / 3, abs=0.1)
    assert after_miss == pytest.approx(1 / 3, abs=0.1)


def test_counts_decay_at_both_levels() -> None:
    model = AcceptanceModel(1)
    model.record("draft", [1], [1], [1])
    model.record("draft", [1], [1], [0])
    trials, successes = DRAFTER_DECAY + 1, DRAFTER_DECAY
    shared = (successes + PRIOR_WEIGHT * 0.78) / (trials + PRIOR_WEIGHT)
    trials, successes = REQUEST_DECAY + 1, REQUEST_DECAY
    ratio = min(1.0, (successes + 8) / (trials * shared + 8))
    expected = (successes + 24 * ratio * shared) / (trials + 24)
    assert model.survival("draft", [1])[0, 0] == pytest.approx(expected)


def test_close_frees_and_eviction_bounds_the_memory() -> None:
    model = AcceptanceModel(1, max_requests=2)
    for _ in range(50):
        model.record("draft", [1], [1], [0])
    bad = model.survival("draft", [1])[0, 0]
    model.close(1)
    assert model.survival("draft", [1])[0, 0] > bad, "the same id again starts afresh"
    for seq_id in range(2, 20):  # never closed, as after aborts
        assert model.survival("draft", [seq_id])[0, 0] > bad
