"""Exposed and hidden time of a drafter, its price when it is scarce, and alarms, by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec.speculation.controller.alarms import MIN_ROUND_TRIPS, DrafterAlarms
from specdec.speculation.controller.cost import CostModel
from specdec.speculation.controller.drafter_cost import (
    NETWORK_WINDOW,
    DrafterCost,
    Quantiles,
    capacity_price,
)
from specdec.speculation.controller.interface import DrafterTiming


def test_quantiles_are_those_of_the_window() -> None:
    rng = random.Random(5)
    quantiles, values = Quantiles(), []
    for _ in range(1000):
        values.append(rng.choice([rng.random(), 0.5]))
        quantiles.add(values[-1])
        window = sorted(values[-NETWORK_WINDOW:])
        assert quantiles.at(0.5) == window[len(window) // 2]
        assert quantiles.at(0.95) == window[int(0.95 * len(window))]
    assert len(quantiles) == NETWORK_WINDOW
    assert Quantiles().at(0.95) == 0.0


@pytest.mark.parametrize(
    ("busy", "targets", "price"),
    [
        (0.0, 4, 0.0),
        (0.7, 4, 0.0),  # idle time covers the round
        (0.825, 4, 0.375),  # halfway to the bottleneck, three quarters of it other targets'
        (0.95, 4, 0.75),
        (1.0, 2, 0.5),
        (1.0, 1, 0.0),  # alone: what it lacks comes back as our own waiting
        (1.0, 0, 0.0),  # not told
    ],
)
def test_a_second_of_the_draft_costs_the_others_share_of_its_scarcity(busy, targets, price) -> None:
    assert capacity_price(busy, targets) == pytest.approx(price)


def hidden_drafter(busy: float = 0.5, targets: int = 1) -> DrafterCost:
    """10 ms a depth, computed while the target was busy; the step waits 2 ms in any case."""
    cost = DrafterCost(4)
    for _ in range(50):
        for depth in (1, 2, 3, 4):
            cost.observe_wait(depth, depth, 0.002)
            timing = DrafterTiming(
                "draft",
                draft_s=0.010 * depth,
                network_s=0.001,
                busy_fraction=busy,
                num_targets=targets,
            )
            cost.observe_timing(timing, (depth, depth))
    return cost


def test_hidden_time_is_free_while_the_draft_has_time() -> None:
    cost = hidden_drafter()
    assert cost.charged.by_depth == pytest.approx([0, 0.002, 0.002, 0.002, 0.002], rel=0.05)
    assert cost.exposed_s == pytest.approx(0.002, rel=0.01)
    # The mean round is 25 ms + 1 ms of network, of which 2 ms are waited; it lags by the last few.
    assert cost.hidden_s == pytest.approx(0.024, rel=0.15)


def test_a_bottleneck_is_charged_though_nobody_waits() -> None:
    """Two targets, no idle time: half of what is hidden. At depth 4: 2 + (40 - 2) / 2 ms."""
    charged = hidden_drafter(busy=1.0, targets=2).charged.by_depth
    assert charged == pytest.approx([0, 0.006, 0.011, 0.016, 0.021], rel=0.05)
    assert (np.diff(charged) >= 0).all()


def test_waits_and_charges_are_apart() -> None:
    """How long a step will wait is not what it is charged."""
    model = CostModel(4)
    model.observe_run(1, 0, 0.05)
    timing = DrafterTiming("draft", 0.040, 0.001, 0.002, None, busy_fraction=1.0, num_targets=2)
    for _ in range(50):
        model.observe_timings([timing], {"draft": (4, 4)})
        model.observe_propose({"draft": (4, 4)}, 0.002, [timing])
    assert model.propose_s("draft", 4, 4) == pytest.approx(0.002, rel=0.05)
    assert model.propose_cost("draft").by_depth[4] == pytest.approx(0.021, rel=0.05)


def test_measured_waits_are_each_drafters_own() -> None:
    """Together they took 30 ms; without being told, one would be charged what is the other's."""
    model = CostModel(8)
    model.observe_run(1, 0, 0.1)
    timings = [DrafterTiming("slow", 0.025, None, 0.025), DrafterTiming("fast", 0.005, None, 0.005)]
    asked = {"slow": (2, 2), "fast": (2, 2)}
    for _ in range(5):
        model.observe_propose(asked, 0.030, timings)
    assert model.propose_s("slow", 2, 2) == pytest.approx(0.025, rel=0.02)
    assert model.propose_s("fast", 2, 2) == pytest.approx(0.005, rel=0.02)


def test_a_late_answer_teaches_the_depth_that_it_was_asked_for() -> None:
    model = CostModel(8)
    timing = DrafterTiming("draft", 0.080, 0.001, asked=(8, 8))
    for _ in range(5):
        model.observe_timings([timing], {"draft": (1, 1)})
    cost = model._drafters["draft"]
    assert cost.draft.at(8, 8) == pytest.approx(0.080, rel=0.05)
    assert cost.draft.at(1, 1) == pytest.approx(0.010, rel=0.05)


def test_snapshot_names_every_drafter() -> None:
    model = CostModel(8)
    model.observe_run(1, 0, 0.1)
    for network_s in (0.001, 0.002, 0.003, 0.050):
        timing = DrafterTiming("draft", 0.020, network_s, 0.021)
        model.observe_timings([timing], {"draft": (2, 2)})
        model.observe_propose({"draft": (2, 2)}, 0.021, [timing])
    state = model.snapshot()
    assert (state["network_p50_s_draft"], state["network_p95_s_draft"]) == (0.003, 0.050)
    assert model.jitter_s(["draft", "ngram"]) == pytest.approx(0.047)
    assert state["alarm"] == ""


def test_alarms_count_beginnings_and_keep_to_their_bounds() -> None:
    """Half of a step of 40 ms: it begins above 20 ms and ends below 16."""
    alarms = DrafterAlarms("draft")
    alarms.observe_network(1.0, MIN_ROUND_TRIPS - 1, 0.040)
    assert alarms.reason == ""
    for p95_s, count in ((0.020, 0), (0.021, 1), (0.017, 1), (0.021, 1), (0.015, 1), (0.030, 2)):
        alarms.observe_network(p95_s, 100, 0.040)
        assert alarms.slow_network.count == count
    assert "30.0 ms exceeds half of a target step of 40.0 ms" in alarms.reason
    for is_silent, count in ((False, 0), (True, 1), (True, 1), (False, 1), (True, 2)):
        alarms.observe_heartbeat(is_silent)
        assert alarms.heartbeat_lost.count == count
    assert alarms.reason == "draft: no heartbeat from a draft replica"
