"""What a request is told of its K: with its last output where it asked, by its id afterwards.

The controller is scripted, so that each step's explanation is known beforehand.
"""

from __future__ import annotations

import pytest

from specdec.engine import explanations as module
from specdec.engine.explanations import Explanations
from specdec.params import SpeculationParams
from specdec.sequence import Explanation
from tests.unit.engine.engine_harness import OFF, make_engine, random_prompt, request, run

PROMPT = random_prompt(9, seed=3)
ASKS = SpeculationParams(explain=True)
PARAMS = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 6}


class Scripted:
    """Always k = 0; its explanation of step n names n, and it remembers `reach` steps."""

    def __init__(self, reach: int = 1000) -> None:
        self.reach = reach
        self.steps: list[dict[int, int | None]] = []

    def choose_drafters(self, state, options):
        return [names[0] if names else None for names in options]

    def plan(self, state):
        self.steps.append({sequence.seq_id: None for sequence in state.sequences})
        return [0] * len(state.sequences)

    def observe(self, result):
        for each in result.sequences:
            self.steps[-1][each.seq_id] = each.num_committed_tokens

    def close(self, seq_id):
        pass

    def wait_s(self):
        return 0.0

    def snapshot(self):
        return {}

    def explain(self, seq_id, last_steps=None):
        reach = self.reach if last_steps is None else min(self.reach, last_steps)
        first = max(0, len(self.steps) - reach)
        return tuple(
            explanation(number, step[seq_id])
            for number, step in enumerate(self.steps[first:], start=first + 1)
            if seq_id in step
        )


def explanation(number, num_accepted):
    return Explanation(
        number, 0.0, "on", None, 0, 0, num_accepted, (), 0.0, 0.0, 1.0, 1.0, f"step {number}"
    )


@pytest.fixture
def engine(tiny_llama):
    engine = make_engine(tiny_llama)
    engine.controller = Scripted()
    return engine


def told(outputs):
    return [(each.step, each.num_accepted_tokens) for each in outputs[-1].metrics.explanations]


def test_a_request_that_asks_is_told_every_decode_step_with_its_outcome(engine):
    """Six tokens: one of the prefill, five of decode steps; the last one's outcome, too, though the
    request ended in it."""
    outputs = run(engine, [request(PROMPT, speculation=ASKS, **PARAMS)])["r"]
    assert told(outputs) == [(number, 1) for number in range(1, 6)]
    assert all(output.metrics is None for output in outputs[:-1])


def test_who_does_not_ask_is_told_nothing_and_costs_nothing(engine):
    asked = []
    engine.controller.explain = lambda *arguments, **options: asked.append(arguments) or ()
    outputs = run(engine, [request(PROMPT, **PARAMS)])["r"]
    assert outputs[-1].metrics.explanations is None
    assert not asked


def test_each_of_a_batch_is_told_its_own(engine):
    """The shorter request ends two steps earlier; the third asks not."""
    outputs = run(
        engine,
        [
            request(PROMPT, "long", speculation=ASKS, **PARAMS),
            request(PROMPT, "short", speculation=ASKS, **{**PARAMS, "max_tokens": 4}),
            request(PROMPT, "silent", speculation=OFF, **PARAMS),
        ],
    )
    assert [step for step, _ in told(outputs["long"])] == [1, 2, 3, 4, 5]
    assert [step for step, _ in told(outputs["short"])] == [1, 2, 3]
    assert outputs["silent"][-1].metrics.explanations is None


def test_what_is_collected_goes_beyond_the_log_and_is_bounded(engine, monkeypatch):
    engine.controller.reach = 1
    outputs = run(engine, [request(PROMPT, speculation=ASKS, **PARAMS)])["r"]
    assert [step for step, _ in told(outputs)] == [1, 2, 3, 4, 5]
    monkeypatch.setattr(module, "MAX_COLLECTED", 2)
    outputs = run(engine, [request(PROMPT, speculation=ASKS, **PARAMS)])["r"]
    assert [step for step, _ in told(outputs)] == [9, 10]


def test_a_request_that_expires_is_told_what_came_before(tiny_llama):
    engine = make_engine(tiny_llama)
    engine.controller = Scripted()
    now = [0.0]
    engine._clock = lambda: now[0]
    wanted = request(PROMPT, speculation=ASKS, **PARAMS)
    wanted.timeout_s = 10.0
    engine.add_request(wanted)
    for _ in range(3):  # the prefill and two decode steps
        engine.step()
    now[0] = 11.0
    (last,) = engine.step()
    assert last.finish_reason == "error"
    assert told([last]) == [(1, 1), (2, 1)]


def test_a_request_is_found_by_its_id_while_it_runs_and_afterwards(engine):
    sequence = engine.add_request(request(PROMPT, "mine", partition="p", **PARAMS))
    assert engine.explain("another") == []
    (found,) = engine.explain("mine")
    assert (found.finish_reason, found.num_steps, found.explanations) == (None, 0, ())
    for _ in range(3):
        engine.step()
    (found,) = engine.explain("mine")
    assert (found.partition, found.finish_reason, found.num_steps) == ("p", None, 2)
    assert [each.step for each in found.explanations] == [1, 2]
    while engine.has_work:
        engine.step()
    (found,) = engine.explain("mine")
    assert (found.finish_reason, found.num_steps) == ("length", 5)
    assert sequence.stats.num_steps == 5
    engine.controller.reach = 2
    (found,) = engine.explain("mine")
    assert (found.num_steps, [each.step for each in found.explanations]) == (5, [4, 5])


def test_an_aborted_request_is_found_and_its_collection_dropped(engine):
    sequence = engine.add_request(request(PROMPT, "gone", speculation=ASKS, **PARAMS))
    for _ in range(2):
        engine.step()
    engine.abort(sequence.seq_id)
    (found,) = engine.explain("gone")
    assert (found.finish_reason, found.num_steps) == ("abort", 1)
    assert not engine.explanations._asked


def test_choices_are_found_by_the_request_they_belong_to(engine):
    run(engine, [request(PROMPT, name, **PARAMS) for name in ("a-0", "a-1", "a-x", "ab-0", "b")])
    assert [each.request_id for each in engine.explain("a")] == ["a-0", "a-1"]
    assert [each.request_id for each in engine.explain("a-1")] == ["a-1"]


def test_only_the_last_requests_are_remembered(engine):
    engine.explanations = Explanations(max_requests=2)
    run(engine, [request(PROMPT, name, **PARAMS) for name in ("one", "two", "three")])
    assert [len(engine.explain(name)) for name in ("one", "two", "three")] == [0, 1, 1]


def test_a_request_without_a_decode_step_takes_nobodys_place(engine):
    """Such as the health check: one token, in every few seconds."""
    engine.explanations = Explanations(max_requests=2)
    run(engine, [request(PROMPT, "mine", **PARAMS)])
    for _ in range(3):
        run(engine, [request(PROMPT, "health", **{**PARAMS, "max_tokens": 1})])
    assert engine.explain("health") == []
    assert len(engine.explain("mine")) == 1


def test_a_warm_up_is_no_request(engine):
    run(engine, [request(PROMPT, "warm", **PARAMS)])
    engine.add_request(request(PROMPT, "running", **PARAMS))
    engine.reset_counters()
    assert engine.explain("warm") == []
    assert len(engine.explain("running")) == 1


def test_the_real_controller_explains_through_the_engine(tiny_llama):
    """Every decode step is explained, and what is told of it is what was counted."""
    engine = make_engine(tiny_llama)
    wanted = request(PROMPT * 3, speculation=ASKS, **{**PARAMS, "max_tokens": 40})
    last = run(engine, [wanted])["r"][-1]
    told = last.metrics.explanations
    assert len(told) == last.metrics.stats.num_steps
    drafted = [each.num_draft_tokens for each in told if each.num_draft_tokens]
    accepted = [each.num_accepted_tokens for each in told if each.num_draft_tokens]
    assert drafted == last.metrics.stats.per_step_drafted
    assert accepted == last.metrics.stats.per_step_accepted
    assert drafted
    assert all(each.reason for each in told)
