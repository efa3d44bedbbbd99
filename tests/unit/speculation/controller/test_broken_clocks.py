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
