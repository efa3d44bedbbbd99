"""Who took how much of a step's wait, told apart by drafter."""

from __future__ import annotations

from types import SimpleNamespace

from specdec.engine.drafters import Drafters
from specdec.speculation.controller.interface import DrafterTiming
from specdec.speculation.proposer import DraftTokens
from tests.unit.engine.draft_harness import Clock


class Proposer:
    """Proposes 7 for everybody and takes `seconds` for it."""

    takes_time = True

    def __init__(self, name, clock, seconds):
        self.name, self._clock, self._seconds = name, clock, seconds

    def open(self, sequences):
        pass

    def propose(self, ks, wait_s):
        self._clock.advance(self._seconds)
        return {seq_id: DraftTokens([7] * k) for seq_id, k in ks.items()}


class Distant(Proposer):
    """Its drafter computes elsewhere."""

    def take_timing(self):
        return DrafterTiming(self.name, draft_s=0.05, network_s=0.004, asked=(4, 9))


def drafters(clock):
    proposers = [Proposer("near", clock, 0.02), Distant("far", clock, 0.01)]
    all_drafters = Drafters({p.name: p for p in proposers}, clock)
    sequences = [
        SimpleNamespace(seq_id=i, drafters=(name,), used_drafter=name)
        for i, name in enumerate(["near", "far"])
    ]
    all_drafters.open(sequences)
    return all_drafters


def test_each_is_charged_its_own_wait():
    mine = drafters(Clock())
    mine.propose({0: 2, 1: 4}, wait_s=1.0)
    near, far = mine.take_timings()
    assert near.drafter == "near"
    assert round(near.waited_s, 9) == round(near.draft_s, 9) == 0.02
    assert near.network_s is None
    assert round(far.waited_s, 9) == 0.01
    assert (far.draft_s, far.network_s, far.asked) == (0.05, 0.004, (4, 9))


def test_one_that_was_not_asked_waited_for_nothing_and_may_still_tell():
    mine = drafters(Clock())
    mine.propose({0: 2}, wait_s=1.0)
    assert [t.drafter for t in mine.take_timings()] == ["near", "far"]
    mine.propose({}, wait_s=0.0)
    (far,) = mine.take_timings()
    assert far.waited_s is None
    assert far.draft_s == 0.05
