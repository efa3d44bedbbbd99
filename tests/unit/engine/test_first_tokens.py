"""Nobody's first token waits for a draft: steps with a prefill do without one, but not for ever."""

from __future__ import annotations

import pytest

from specdec.engine.engine import MAX_UNDRAFTED_STEPS
from specdec.params import SpeculationParams
from tests.unit.engine.engine_harness import (
    TellingProposer,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    run,
    token_ids,
)

SHORT, LONG = random_prompt(5, seed=1), random_prompt(200, seed=2)
GREEDY = {"temperature": 0.0, "ignore_eos": True}
BUDGET = 8


class SlowProposer(TellingProposer):
    """As a remote draft: an answer must be waited for."""

    takes_time = True


@pytest.fixture(scope="module")
def truth(tiny_llama):
    """The target's own text after the short prompt."""
    engine = make_engine(tiny_llama)
    return {len(SHORT): SHORT + generate(engine, SHORT, max_tokens=250, **GREEDY)}


def asked_in_each_step(tiny_llama, proposer, speculation: SpeculationParams) -> list[bool]:
    """Whether the proposer was asked, in each step in which the long prompt was computed beside
    the short one's output, and in eight steps before that."""
    engine = make_engine(
        tiny_llama, drafters=("draft",), draft_proposer=proposer, max_num_batched_tokens=BUDGET
    )
    engine.add_request(request(SHORT, max_tokens=240, speculation=speculation, **GREEDY))
    asked = []

    def step() -> None:
        before = proposer.num_asked
        engine.step()
        asked.append(proposer.num_asked > before)

    step()  # the short prompt
    for _ in range(8):
        step()
    late = engine.add_request(request(LONG, speculation=SpeculationParams(mode="off"), **GREEDY))
    while late.first_token_s is None:
        step()
    return asked[1:]


def test_a_draft_pauses_while_a_prompt_is_computed(tiny_llama, truth):
    asked = asked_in_each_step(tiny_llama, SlowProposer(truth), SpeculationParams(max_k=3))
    before, beside = asked[:8], asked[8:]
    assert any(before)
    assert not any(beside[:MAX_UNDRAFTED_STEPS])
    assert any(beside[MAX_UNDRAFTED_STEPS:])


@pytest.mark.parametrize(
    ("kind", "speculation"),
    [
        pytest.param(TellingProposer, SpeculationParams(max_k=3), id="a drafter without delay"),
        pytest.param(SlowProposer, fixed(2), id="a K that the client fixed"),
    ],
)
def test_what_need_not_pause_does_not(tiny_llama, truth, kind, speculation):
    asked = asked_in_each_step(tiny_llama, kind(truth), speculation)
    assert any(asked[8 : 8 + MAX_UNDRAFTED_STEPS])


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}])
def test_a_draft_that_is_opened_after_the_prompt_changes_no_text(tiny_llama, tiny_draft, params):
    """The draft is told of what was committed before it was opened."""
    engine = make_engine(
        tiny_llama,
        tiny_draft,
        drafters=("draft",),
        max_num_batched_tokens=BUDGET,
        speculation={"open_drafts": "after_prompt"},
    )
    requests = [
        request(prompt, f"{i}", max_tokens=12, ignore_eos=True, speculation=wish, **params)
        for i, prompt in enumerate((SHORT, LONG[:30]))
        for wish in (fixed(3),)
    ]
    plain = make_engine(tiny_llama)
    expected = [
        generate(plain, r.prompt_token_ids, max_tokens=12, ignore_eos=True, **params)
        for r in requests
    ]
    outputs = run(engine, requests)
    assert [token_ids(outputs[r.request_id]) for r in requests] == expected
    assert all(outputs[r.request_id][-1].metrics.stats.num_drafts for r in requests)
    assert engine.stats().counters.num_accepted_tokens > 0
