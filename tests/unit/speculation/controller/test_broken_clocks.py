"""Times that no clock can have shown, and limits that leave nothing to choose: the controller goes
on, and what it knew of times stays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import GoodputController
from specdec.speculation.controller.interface import DrafterTiming, Scored
from tests.unit.speculation.controller.test_controller import controller
from tests.unit.speculation.controller.world import World

IMPOSSIBLE = [math.nan, math.inf, -math.inf, -1.0, 1e300]


class Meddling:
    """A controller whose results pass through `change` before it sees them."""

    def __init__(self, inner: GoodputController) -> None:
        self.inner = inner
        self.change = lambda result: result

    def plan(self, state):
        ks = self.inner.plan(state)
        assert all(0 <= k <= s.max_k for k, s in zip(ks, state.sequences, strict=True))
        assert 0 <= self.inner.wait_s() < math.inf
        return ks

    def observe(self, result):
        self.inner.observe(self.change(result))

    def __getattr__(self, name):
        return getattr(self.inner, name)


def times_of(inner: GoodputController) -> dict[str, float]:
    names = ("measured_goodput", "drift", "guard_ratio", "exposed_s_draft", "probes")
    return {name: inner.snapshot()[name] for name in names}


@pytest.mark.parametrize("field", ["step_s", "propose_s", "first_tokens_s"])
@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_a_step_of_impossible_length_teaches_nothing_of_times(field, seconds) -> None:
    meddling = Meddling(controller())
    world = World(meddling, {1: 0.8})
    world.steps(100)
    before = times_of(meddling.inner)
    value = (seconds,) if field == "first_tokens_s" else seconds
    meddling.change = lambda result: replace(result, **{field: value})
    world.steps(20)
    # Probes are asked for beforehand: they are no time, and may go on while there is credit.
    after = times_of(meddling.inner)
    assert {**after, "probes": before["probes"]} == before
    meddling.change = lambda result: result
    world.steps(50)
    assert sum(world.ks[1][-20:]) > 40  # acceptance 0.8 at this cost: about 4 in each step


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_nothing_but_impossible_times_from_the_start(seconds) -> None:
    meddling = Meddling(controller())
    meddling.change = lambda result: replace(result, step_s=seconds)
    world = World(meddling, {1: 0.8})
    world.steps(30)
    assert not any(world.ks[1])  # without a single time nothing can be priced
    meddling.change = lambda result: result
    world.steps(100)
    assert sum(world.ks[1][-20:]) > 40


TINY = [0.0, 5e-324, 1e-310, 1e-12]


def are_numbers(inner: GoodputController) -> bool:
    values = [v for v in inner.snapshot().values() if isinstance(v, float)]
    return all(math.isfinite(value) and abs(value) < 1e12 for value in values)


@pytest.mark.parametrize("field", ["step_s", "propose_s", "both"])
@pytest.mark.parametrize("seconds", TINY)
def test_times_next_to_nothing_are_no_numbers_that_stay(field: str, seconds: float) -> None:
    """Twenty of them, and what is known of times is as before within a few hundred steps."""
    changes = {"step_s": seconds, "propose_s": seconds}
    if field != "both":
        changes = {field: seconds, **({"propose_s": 0.0} if field == "step_s" else {})}
    meddling = Meddling(controller())
    world = World(meddling, {1: 0.8})
    world.steps(60)
    meddling.change = lambda result: replace(result, **changes)
    world.steps(20)
    assert are_numbers(meddling.inner)
    meddling.change = lambda result: result
    world.steps(300)
    assert are_numbers(meddling.inner)
    assert sum(world.ks[1][-20:]) > 40


def test_nothing_but_tiny_times_from_the_start() -> None:
    meddling = Meddling(controller())
    meddling.change = lambda result: replace(result, step_s=1e-310, propose_s=1e-310)
    world = World(meddling, {1: 0.8})
    world.steps(40)
    assert are_numbers(meddling.inner)


def test_a_drafter_cannot_price_itself_out_with_what_nobody_can_measure() -> None:
    """It says that it is busy for others, and that it computes for a day: it is charged for no
    more than a few steps."""
    meddling = Meddling(controller())
    timing = DrafterTiming("draft", 86_400.0, 0.001, 0.02, (4, 4), 1.0, 1000)
    meddling.change = lambda result: replace(result, timings=(timing,))
    World(meddling, {1: 0.8}).steps(60)
    assert meddling.inner._cost.propose_cost("draft").by_depth.max() < 2.0


def test_a_moment_that_is_no_number_teaches_nothing_of_times() -> None:
    meddling = Meddling(controller())
    world = World(meddling, {1: 0.8})
    world.steps(60)
    before = times_of(meddling.inner)
    meddling.change = lambda result: replace(result, now_s=math.nan)
    world.steps(5)
    assert {**times_of(meddling.inner), "probes": before["probes"]} == before


@pytest.mark.parametrize("told", [math.nan, math.inf, -math.inf, 1e300, -5.0, 1e-310])
def test_a_confidence_of_any_value_is_one(told: float) -> None:
    control = controller()
    world = World(control, {1: 0.8})
    world.confidence = {"draft": told}
    world.steps(60)
    assert are_numbers(control)
    assert sum(world.ks[1][-20:]) > 40


@pytest.mark.parametrize("field", ["draft_s", "network_s", "waited_s", "busy_fraction"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300])
def test_what_a_drafter_says_of_itself_is_not_believed_blindly(field, value) -> None:
    """The same run with and without lies beside it ends at the same times."""
    snapshots = []
    for lies in (False, True):
        meddling = Meddling(controller())
        timing = DrafterTiming("draft", **{field: value})
        if lies and not (field == "busy_fraction" and math.isfinite(value)):
            meddling.change = lambda result, timing=timing: replace(result, timings=(timing,))
        World(meddling, {1: 0.8}).steps(60)
        snapshots.append(times_of(meddling.inner))
    assert snapshots[0] == snapshots[1]


def test_an_operator_who_allows_no_draft_token_has_a_controller_all_the_same() -> None:
    """Lookup is scored whether it may propose or not."""
    meddling = Meddling(controller(max_k=0))

    def scored(result):
        for row in result.sequences:
            row.scored = (Scored("ngram", 1, 1),)
        return result

    meddling.change = scored
    world = World(meddling, {1: 0.8}, drafter="ngram", max_k=0)
    world.steps(20)
    assert world.ks[1] == [0] * 20
    assert "acceptance_first_ngram" not in meddling.snapshot()


@pytest.mark.filterwarnings("error")
def test_a_limit_that_no_step_can_keep_drafts_nothing() -> None:
    """60 ms for one token, 1 ms allowed: no budget scores, and none divides by that."""
    strict = GoodputController(SpeculationConfig(max_num_speculative_tokens=8, max_tpot_ms=1.0))
    world = World(strict, {1: 0.9})
    world.steps(100)
    assert world.ks[1][40:] == [0] * 60  # no probe either
