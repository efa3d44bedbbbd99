"""What a step costs, and who is charged for the wait."""

from __future__ import annotations

import pytest

from specdec.speculation.controller.acceptance import prior_of
from specdec.speculation.controller.cost import CostModel, ProfilePoint
from specdec.speculation.controller.profile import CostSeed, DraftPoint


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


def test_slack_of_a_captured_graph_is_free() -> None:
    """Steps of 5 to 8 run the graph of 8. Drafting 3 tokens at 5 costs nothing, a fourth does."""
    steps = tuple(ProfilePoint(n, 0, 0.010 + 0.001 * n) for n in (1, 2, 4, 8, 16))
    cost = CostModel(8)
    cost.seed(CostSeed(steps=steps, graph_sizes=(1, 2, 4, 8, 16)))
    assert cost.run_s([5, 6, 7, 8], 0) == pytest.approx([0.018] * 4)
    assert cost.run_s([9, 16], 0) == pytest.approx([0.026] * 2)


def test_rounds_measured_before_need_no_calibration() -> None:
    rounds = tuple(DraftPoint(n, k, 0.004 * k) for n in (1, 4) for k in (1, 2, 4))
    cost = CostModel(8)
    cost.seed(CostSeed(drafts={"draft": rounds}))
    assert cost.num_proposals("draft") == 6
    assert cost.propose_s("draft", 4, 16) == pytest.approx(0.016, rel=0.02)
    assert cost.propose_cost("draft").by_depth == pytest.approx(
        [0.004 * k for k in range(9)], rel=0.05
    )
