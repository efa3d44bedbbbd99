"""The controller in a simulated engine: right K, never slow for long, back when it pays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import (
    BatchState,
    GoodputController,
    ProfilePoint,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.controller.acceptance import MAX_REQUESTS
from tests.unit.speculation.controller.world import World, draft_model, lookup, memory_bound


def controller(max_k: int = 8) -> GoodputController:
    return GoodputController(SpeculationConfig(max_num_speculative_tokens=max_k))


def ideal_speed(alpha: float, k: int, world: World) -> float:
    """Tokens per second of one sequence at constant k (Leviathan et al., formula 1)."""
    tokens = sum(alpha**j for j in range(k + 1))
    return tokens / (world.run_s(1 + k, world.kv) + world.propose_s(k, k))


def late_mean(world: World, seq_id: int, steps: int = 100) -> float:
    return float(np.mean(world.ks[seq_id][-steps:]))


@pytest.mark.parametrize("drafter", ["draft", "ngram"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8])
def test_speed_comes_within_five_percent_of_the_best_k(drafter: str, alpha: float) -> None:
    propose_s = draft_model if drafter == "draft" else lookup
    world = World(controller(), {1: alpha}, drafter=drafter, propose_s=propose_s)
    world.steps(200)
    world.reset_clock()
    world.steps(500)
    best = max(ideal_speed(alpha, k, world) for k in range(9))
    assert world.speed_since >= 0.95 * best


def test_first_64_tokens_are_not_spent_on_learning() -> None:
    """A process may live for one request: 64 steps reach 85 % of the best constant k."""
    for alpha in (0.0, 0.8):
        speeds = []
        for seed in range(5):
            world = World(controller(), {1: alpha}, seed=seed)
            world.steps(64)
            speeds.append(world.speed)
        best = max(ideal_speed(alpha, k, world) for k in range(9))
        assert np.mean(speeds) >= 0.85 * best


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("batch", [1, 8])
def test_bad_drafter_ends_at_k_0_and_costs_five_percent_at_most(noise: float, batch: int) -> None:
    world = World(controller(), dict.fromkeys(range(batch), 0.0), noise=noise)
    world.steps(500)
    base = batch / (memory_bound(batch, batch * world.kv) * (1 + noise))
    assert world.speed >= 0.95 * base
    assert late_mean(world, 0, 200) < 0.15


def test_two_requests_in_one_batch_end_at_different_k() -> None:
    world = World(controller(), {1: 0.95, 2: 0.1})
    world.steps(400)
    assert late_mean(world, 1) > 4
    assert late_mean(world, 2) < 1


def test_speculation_comes_back_when_acceptance_does() -> None:
    for drafter, propose_s, patience in (("draft", draft_model, 200), ("ngram", lookup, 60)):
        world = World(controller(), {1: 0.9}, drafter=drafter, propose_s=propose_s)
        world.steps(100)
        assert late_mean(world, 1, 20) > 3
        world.alpha[1] = 0.0
        world.steps(400)
        assert late_mean(world, 1) < 0.6
        world.alpha[1] = 0.9
        world.steps(patience)
        assert late_mean(world, 1, 10) > 3


def test_another_sequence_profits_from_what_one_has_shown() -> None:
    world = World(controller(), {1: 0.0})
    world.steps(150)
    world.alpha[2] = 0.0
    world.ks[2] = []
    world.steps(20)
    assert sum(world.ks[2]) <= 2


def test_too_slow_a_draft_is_not_asked() -> None:
    """Acceptance 0.8, but a draft step costs as much as a target step: no K pays."""
    world = World(controller(), {1: 0.8}, propose_s=lambda depth, tokens: 0.06 * depth)
    world.steps(300)
    assert late_mean(world, 1) < 0.1


def test_load_and_staircase_lower_k() -> None:
    """8 tokens fit one stair: one sequence may fill it, eight sequences may not."""
    ks = []
    for batch in (1, 8):
        world = World(
            controller(),
            dict.fromkeys(range(batch), 0.7),
            run_s=lambda n, kv: 0.010 + 0.006 * ((n - 1) // 8),
            propose_s=lambda depth, tokens: 0.0005 * depth,
        )
        world.steps(400)
        ks.append(late_mean(world, 0))
    assert ks[0] > 4
    assert ks[1] < 1.5


def test_fixed_k_is_honoured_from_the_first_step_and_clipped() -> None:
    world = World(controller(max_k=4), {1: 0.0, 2: 0.0}, fixed_k={1: 3, 2: 9}, max_k=8)
    world.steps(80)
    assert set(world.ks[1]) == {3}
    assert set(world.ks[2]) == {4}


def test_no_k_beyond_the_limit_of_a_sequence_or_without_a_drafter() -> None:
    control = controller()
    world = World(control, {1: 1.0}, max_k=2)
    world.steps(100)
    assert max(world.ks[1]) == 2
    states = [
        SequenceState(1, 10, 0, None, "draft"),
        SequenceState(2, 10, 8, None, None),
        SequenceState(3, 10, 0, 5, "draft"),
        SequenceState(4, 10, 8, 5, None),
    ]
    assert control.plan(BatchState(states, 0, 40, world.now_s)) == [0, 0, 0, 0]
    assert control.plan(BatchState([], 300, 300, world.now_s)) == []


def test_an_operator_may_forbid_all_drafting() -> None:
    world = World(controller(max_k=0), {1: 0.9, 2: 0.9}, fixed_k={2: 4})
    world.steps(30)
    assert set(world.ks[1]) == set(world.ks[2]) == {0}


def test_profile_saves_the_measuring_of_the_baseline() -> None:
    profile = [ProfilePoint(1, 200, 0.06), ProfilePoint(9, 200, 0.08)]
    control = GoodputController(SpeculationConfig(), profile)
    world = World(control, {1: 0.9})
    world.steps(6)
    assert all(k > 0 for k in world.ks[1])


def test_waits_are_always_finite_and_follow_the_draft() -> None:
    world = World(controller(), {1: 0.9})
    waits = []
    for _ in range(100):
        world.step()
        waits.append(world.controller.wait_s())
    assert all(0 <= wait <= 0.25 and math.isfinite(wait) for wait in waits)
    assert waits[-1] < 0.15


def test_a_hung_draft_is_given_up_and_taken_back() -> None:
    """Proposals stop coming: each costs a wait. They come again: so does speculation."""
    world = World(controller(), {1: 0.9})
    world.steps(100)
    world.propose_s = lambda depth, tokens: 10.0 if depth else 0.0
    world.steps(100)
    assert late_mean(world, 1, 50) < 0.5
    world.propose_s = draft_model
    world.steps(800)
    assert late_mean(world, 1, 20) >= 3


def test_a_drafter_that_declines_at_once_costs_and_teaches_nothing() -> None:
    """While it computes the prompt it answers with nothing, in no time."""
    world = World(controller(), {1: 0.9})
    world.declining = True
    world.steps(40)
    assert world.speed >= 0.99 / memory_bound(1, world.kv)
    world.declining = False
    world.steps(300)
    assert late_mean(world, 1, 20) > 3


def test_prefill_beside_decodes_neither_breaks_nor_trips() -> None:
    world = World(controller(), {1: 0.8, 2: 0.8})
    for step in range(300):
        world.step(num_prefill_tokens=64 if step % 3 else 0)
    assert late_mean(world, 1) > 1
    assert world.controller.snapshot()["guard_trips"] == 0


def test_guard_stops_what_the_estimates_get_wrong() -> None:
    """Steps with draft tokens hide time that no estimate sees: it is in neither run nor wait
    as the model knows them, only in every tenth step."""
    control = controller()
    world = World(control, {1: 0.5}, propose_s=lookup)
    calls = {"n": 0}

    def stalls(num_tokens: int, num_kv_tokens: int) -> float:
        calls["n"] += num_tokens > 1
        stalled = num_tokens > 1 and calls["n"] % 10 == 0
        return memory_bound(num_tokens, num_kv_tokens) + (1.0 if stalled else 0.0)

    world.run_s = stalls
    world.steps(3000)  # until cool-downs have doubled to longer than it takes to be sure again
    assert float(control.snapshot()["guard_trips"]) >= 3
    drafted = [k > 0 for k in world.ks[1][-1000:]]
    assert sum(drafted) < 250


def test_finished_and_foreign_outcomes_are_taken_without_a_plan() -> None:
    """Steps may report sequences that never drafted, and steps that only prefill."""
    control = controller()
    results = [
        SequenceResult(1, None, 0, 0, 0, 1, finished=True),
        SequenceResult(2, "draft", 3, 2, 1, 2, finished=True),
    ]
    control.observe(StepResult(70, 64, 100, 0.01, 0.1, 0.12, results, 1.0))
    control.observe(StepResult(64, 64, 200, 0.0, 0.1, 0.1, [], 1.2))
    assert control.snapshot()["steps"] == 2


def test_a_closed_sequence_leaves_nothing_behind() -> None:
    """Aborted and failed sequences are in no result: only `close` tells of them."""
    control = controller()
    for seq_id in range(20):
        World(control, {seq_id: 0.0, 1000 + seq_id: 1.0}).steps(30)
        for closed in (seq_id, 1000 + seq_id, 1000 + seq_id, 5000):
            control.close(closed)
    assert control.snapshot()["probes"] > 0
    assert control._prober._last_turn == {}
    assert control._prober._follow_up is control._prober._awaited is None
    assert not control._estimates._acceptance._slots
    assert len(set(control._estimates._acceptance._free)) == MAX_REQUESTS


def test_snapshot_explains_the_decision() -> None:
    control = controller()
    world = World(control, {1: 0.8})
    world.steps(200)
    snapshot = control.snapshot()
    assert snapshot["phase"] == "on"
    assert 0 < float(snapshot["shadow_price"]) < 1
    assert float(snapshot["acceptance_first_draft"]) == pytest.approx(0.8, abs=0.1)
    assert float(snapshot["measured_goodput"]) == pytest.approx(
        float(snapshot["predicted_goodput"]), rel=0.2
    )
    assert float(snapshot["predicted_baseline"]) == pytest.approx(1 / 0.0602, rel=0.05)


def test_scarce_kv_caps_what_is_free_to_choose_and_not_what_a_client_fixed() -> None:
    control = controller()
    world = World(control, {1: 0.95, 2: 0.95})
    world.steps(100)
    states = [SequenceState(1, 200, 8, None, "draft"), SequenceState(2, 200, 8, 5, "draft")]
    free, fixed = control.plan(BatchState(states, 0, 400, world.now_s, num_waiting=3, free_kv=0.05))
    assert free <= 1
    assert fixed == 5


def test_no_probe_makes_a_step_longer_than_allowed() -> None:
    control = GoodputController(SpeculationConfig(max_tpot_ms=61.0))
    world = World(control, {1: 0.9})
    world.steps(400)
    assert world.ks[1][100:] == [0] * 300


def test_a_fixed_k_is_waited_for_as_long_as_the_operator_allows() -> None:
    """What is usual bounds the wait only where the controller chose K."""
    control = GoodputController(SpeculationConfig(max_wait_ms=200.0))
    world = World(control, {1: 0.9}, fixed_k={1: 4})
    world.steps(60)
    assert world.ks[1][-10:] == [4] * 10
    assert control.wait_s() == 0.2
    free = World(GoodputController(SpeculationConfig(max_wait_ms=200.0)), {1: 0.9})
    free.steps(60)
    assert free.controller.wait_s() < 0.2


def test_what_is_told_is_plain_numbers_and_texts() -> None:
    """Numpy's own floats are floats, but are pickled and printed as what they are."""
    world = World(GoodputController(SpeculationConfig(max_num_speculative_tokens=8)), {1: 0.8})
    world.steps(60)
    assert {type(value) for value in world.controller.snapshot().values()} == {float, str}
