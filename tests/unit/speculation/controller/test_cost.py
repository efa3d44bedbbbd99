"""What a step costs, and who is charged for the wait."""

from __future__ import annotations

import pytest

from specdec.speculation.controller.acceptance import prior_of
from specdec.speculation.controller.cost import CostModel, ProfilePoint


def test_profile_seeds_the_run_cost() -> None:
    points = [ProfilePoint(1, 0, 0.02), ProfilePoint(16, 0, 0.035)]
    assert float(CostModel(8, points).run_s(6, 0)) == pytest.approx(0.025, rel=0.05)


def test_draft_time_is_linear_in_depth_from_the_first_measurement() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    prior = cost.propose_s("draft", 2, 2)
    assert prior == pytest.approx(2 * prior_of("draft").relative_draft_s * 0.1)
    for _ in range(4):
        cost.observe_propose({"draft": (2, 2)}, 0.018)
    assert cost.propose_s("draft", 2, 2) == pytest.approx(0.018, rel=0.02)
    assert cost.propose_s("draft", 6, 6) == pytest.approx(0.054, rel=0.05)
    assert cost.propose_s("draft", 0, 0) == 0.0


def test_depth_is_charged_not_the_number_of_sequences() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    for _ in range(50):  # one sequence: depth and tokens are the same number
        for k in (1, 2, 3, 4):
            cost.observe_propose({"draft": (k, k)}, 0.010 * k + 0.001)
    assert cost.propose_s("draft", 4, 32) == pytest.approx(0.041, rel=0.2)


def test_lookup_is_free_and_the_draft_pays_for_the_wait_of_both() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    for _ in range(10):
        cost.observe_propose({"ngram": (4, 4)}, 1e-5)
    for _ in range(10):
        cost.observe_propose({"ngram": (4, 4), "draft": (2, 2)}, 0.020)
    assert cost.propose_s("draft", 2, 2) == pytest.approx(0.020, rel=0.05)
    assert cost.propose_s("ngram", 4, 4) < 1e-3
