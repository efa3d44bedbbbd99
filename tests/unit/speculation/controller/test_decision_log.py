"""The log against decisions made by hand: what it tells, how far it reaches, what it costs."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import BatchState, GoodputController, SequenceState
from specdec.speculation.controller import decision_log as log_module
from specdec.speculation.controller.decision_log import DecisionLog, Grounds
from specdec.speculation.controller.interface import SequenceResult
from specdec.speculation.controller.policy import Decision, ProposeCost
from specdec.speculation.controller.step import PlannedStep
from tests.unit.speculation.controller.world import World

MAX_K = 4


def planned(*states: SequenceState) -> PlannedStep:
    return PlannedStep(BatchState(list(states), 0, 100, 0.0), MAX_K)


def free(seq_id: int, max_k: int = MAX_K, drafter: str | None = "draft") -> SequenceState:
    return SequenceState(seq_id, 50, max_k, None, drafter)


def decided(ks: list[int], survival: list[list[float]], offered_gain: float = 1.5) -> Grounds:
    """100 tokens per second at 80 without speculation; 10 ms a draft step, 1 ms a draft token."""
    decision = Decision(
        ks=np.array(ks),
        depth=max(ks),
        expected_tokens=1.0,
        goodput=100.0,
        baseline=80.0,
        shadow_price=0.38,
        offered_gain=offered_gain,
    )
    cost = ProposeCost(0.01 * np.arange(MAX_K + 1), 0.001)
    return Grounds(np.array(survival), (cost,), decision)


def result(seq_id: int, num_drafted: int, num_accepted: int) -> SequenceResult:
    return SequenceResult(seq_id, "draft", 2, num_drafted, num_accepted, num_accepted + 1, False)


def test_a_decision_is_told_with_its_numbers() -> None:
    log = DecisionLog()
    survival = [[0.8, 0.5, 0.31, 0.2], [0.6, 0.2, 0.1, 0.05]]
    log.append(
        planned(free(7), free(9)), np.array([2, 1]), "on", 12.5, 1.1, decided([2, 1], survival)
    )
    log.observe([result(9, 1, 0), result(7, 2, 2)])  # in any order

    (deep,), (shallow,) = log.explanations(7), log.explanations(9)
    assert (deep.step, deep.time_s, deep.phase, deep.drafter) == (1, 12.5, "on", "draft")
    assert (deep.k, deep.num_draft_tokens, deep.num_accepted_tokens) == (2, 2, 2)
    assert deep.survival == (0.8, 0.5, 0.31)
    assert deep.shadow_price == 0.38
    # A third draft step: 100 tokens/s x (10 ms for the step + 1 ms for the token).
    assert deep.depth_price == pytest.approx(1.1)
    assert deep.predicted_speedup == pytest.approx(100 / 80)
    assert deep.guard_ratio == 1.1
    assert deep.reason == "position 3 would be accepted with 0.31, below the price 0.38"

    assert (shallow.k, shallow.num_draft_tokens, shallow.num_accepted_tokens) == (1, 1, 0)
    assert shallow.survival == (0.6, 0.2)
    # The batch drafts two deep anyway: only the token costs.
    assert shallow.depth_price == pytest.approx(0.1)
    assert shallow.reason == "position 2 would be accepted with 0.20, below the price 0.38"


def test_the_last_position_allowed_has_none_behind_it() -> None:
    log = DecisionLog()
    log.append(
        planned(free(1, max_k=2)), np.array([2]), "on", 0.0, 1.0, decided([2], [[0.9, 0.8, 0, 0]])
    )
    (told,) = log.explanations(1)
    assert told.survival == (0.9, 0.8)
    assert told.reason == "all 2 positions are worth the price 0.38"


def test_off_tells_what_was_offered() -> None:
    log = DecisionLog()
    log.append(planned(free(1)), np.array([0]), "off", 0.0, 1.0, decided([0], [[0.2] * 4], 0.97))
    (told,) = log.explanations(1)
    assert (told.k, told.survival, told.predicted_speedup) == (0, (0.2,), 0.97)
    assert told.reason == "off: drafting one token deep promises 0.97 of plain speed"


def test_a_probe_is_what_goes_beyond_the_decision() -> None:
    log = DecisionLog()
    log.append(
        planned(free(1), free(2)),
        np.array([3, 1]),
        "on",
        0.0,
        1.0,
        decided([1, 1], [[0.5] * 4] * 2),
    )
    assert log.explanations(1)[0].reason == "probe: tries 2 more positions than pay"
    assert log.explanations(1)[0].survival == (0.5,) * 4
    assert "probe" not in log.explanations(2)[0].reason


def test_steps_without_a_price_say_so() -> None:
    log = DecisionLog()
    fixed = SequenceState(2, 50, MAX_K, 3, "draft")
    none = free(3, drafter=None)
    step = planned(free(1), fixed, none)
    log.append(step, np.array([0, 3, 0]), "guard_off", 0.0, 0.93, None)
    told = [log.explanations(seq_id)[0] for seq_id in (1, 2, 3)]
    assert [each.reason for each in told] == [
        "guard: speculation ran at 0.93 of plain speed, so it pauses",
        "fixed by the request",
        "no drafter may propose here now",
    ]
    assert [each.k for each in told] == [0, 3, 0]
    assert [each.drafter for each in told] == ["draft", "draft", None]
    assert all(each.survival == () and each.shadow_price == 0 for each in told)
    assert all(each.predicted_speedup == 1 for each in told)


def test_outcomes_are_unknown_until_observed_and_belong_to_the_step_planned_last() -> None:
    log = DecisionLog()
    for _ in range(2):
        log.append(planned(free(1)), np.array([2]), "on", 0.0, 1.0, decided([2], [[0.5] * 4]))
    log.observe([result(1, 2, 1)])
    log.observe([result(1, 4, 4)])  # nothing was planned for it
    assert [each.num_accepted_tokens for each in log.explanations(1)] == [None, 1]


def test_the_oldest_steps_are_forgotten() -> None:
    log = DecisionLog(max_steps=5)
    for number in range(12):
        log.append(planned(free(number % 2)), np.array([0]), "idle", float(number), 1.0, None)
    # Of steps 8 to 12, the even ones are of sequence 1.
    assert [each.step for each in log.explanations(1)] == [8, 10, 12]
    assert [each.step for each in log.explanations(0)] == [9, 11]
    assert [each.step for each in log.explanations(1, last_steps=1)] == [12]
    assert log.explanations(0, last_steps=1) == ()
    assert log.explanations(99) == ()


def test_estimates_are_bounded_whatever_the_batch(monkeypatch) -> None:
    """3 sequences of depth 1 hold 3 x 2 estimates a step: 20 allow three steps, not four."""
    monkeypatch.setattr(log_module, "MAX_SURVIVALS", 20)
    log = DecisionLog()
    for _ in range(10):
        grounds = decided([1, 1, 1], [[0.5] * 4] * 3)
        log.append(planned(free(1), free(2), free(3)), np.ones(3, int), "on", 0.0, 1.0, grounds)
    assert [each.step for each in log.explanations(2)] == [8, 9, 10]


def num_allocated(num_sequences: int) -> int:
    """Python memory blocks that one append takes."""
    step = planned(*(free(seq_id) for seq_id in range(num_sequences)))
    grounds = decided([1] * num_sequences, [[0.5] * 4] * num_sequences)
    log, ks = DecisionLog(), np.ones(num_sequences, dtype=np.int64)
    log.append(step, ks, "on", 0.0, 1.0, grounds)
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        log.append(step, ks, "on", 0.0, 1.0, grounds)
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


def test_an_append_makes_no_object_per_sequence() -> None:
    """What it costs the step does not grow with the batch, but for one copied array."""
    assert abs(num_allocated(256) - num_allocated(2)) <= 4
    assert num_allocated(256) < 20


def test_the_step_itself_is_not_kept() -> None:
    """It holds an object for each sequence."""
    log, step = DecisionLog(), planned(free(1))
    log.append(step, np.array([0]), "idle", 0.0, 1.0, None)
    alive = weakref.ref(step)
    del step
    assert alive() is None
    assert len(log.explanations(1)) == 1


def test_the_controller_explains_every_step_that_it_planned() -> None:
    world = World(GoodputController(SpeculationConfig(max_num_speculative_tokens=8)), {1: 0.8})
    world.steps(60)
    told = world.controller.explain(1)
    assert [each.k for each in told] == world.ks[1]
    assert [each.step for each in told] == list(range(1, 61))
    assert all(each.num_accepted_tokens is not None for each in told)
    ranked = [each for each in told if each.phase == "on" and each.reason.startswith("position")]
    assert ranked
    for each in ranked:
        assert len(each.survival) == each.k + 1
        assert all(chance > 0 for chance in each.survival)
    assert told[0].phase == "calibrating"
