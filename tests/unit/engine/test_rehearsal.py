"""What the warm-up's controller plans, and which of the times that it sees it believes."""

from __future__ import annotations

from specdec.engine.rehearsal import Rehearsal
from specdec.speculation.controller import (
    BatchState,
    DraftPoint,
    SequenceResult,
    SequenceState,
    StepResult,
)


def step(seconds, *results):
    """Of (drafter, planned, drafted) each."""
    sequences = [
        SequenceResult(i, drafter, planned, drafted, 0, 1, False)
        for i, (drafter, planned, drafted) in enumerate(results)
    ]
    return StepResult(4, 0, 0, seconds, 0.1, 0.1 + seconds, sequences, 0.0)


def test_two_tokens_for_everyone_who_may():
    states = [
        SequenceState(1, 10, 8, None, "draft"),
        SequenceState(2, 10, 1, None, "draft"),
        SequenceState(3, 10, 0, None, None),
    ]
    assert Rehearsal(0.25).plan(BatchState(states, 0, 0, 0.0)) == [2, 1, 0]


def test_drafters_take_turns_step_by_step():
    rehearsal = Rehearsal(0.25)
    state, options = BatchState([], 0, 0, 0.0), [("draft", "ngram"), ("ngram",), ()]
    assert rehearsal.choose_drafters(state, options) == ["draft", "ngram", None]
    rehearsal.observe(step(0.0))
    assert rehearsal.choose_drafters(state, options) == ["ngram", "ngram", None]


def test_the_least_of_each_shape_counts_without_the_first_and_without_refusals():
    rehearsal = Rehearsal(0.25)
    both = ("draft", 2, 2), ("draft", 1, 1)
    rehearsal.observe(step(0.001, *both))  # cold, whatever it says
    for seconds in (0.05, 0.03, 0.04):
        rehearsal.observe(step(seconds, *both))
    rehearsal.observe(step(0.02, ("draft", 2, 2)))
    rehearsal.observe(step(0.0, ("draft", 2, 0)))  # declined: that takes no time
    rehearsal.observe(step(0.009, ("draft", 2, 2), ("ngram", 2, 2)))  # of whom?
    rehearsal.observe(step(0.0))
    assert set(rehearsal.drafts) == {"draft"}
    assert set(rehearsal.drafts["draft"]) == {DraftPoint(2, 2, 0.03), DraftPoint(1, 2, 0.02)}
