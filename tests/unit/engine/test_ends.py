"""Where an output ends inside an accepted block: stops, EOS, max_tokens, both contexts' ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.engine.engine_harness import (
    OFF,
    TellingProposer,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    run,
    token_ids,
)

PROMPT = random_prompt(11, seed=5)
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
ALL_K = range(1, 9)


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The engine that never speculates."""
    return make_engine(tiny_llama)


@pytest.fixture(scope="module")
def truth(plain):
    """The greedy text; `stop_at` is a place where a token occurs for the first time."""
    return generate(plain, PROMPT, speculation=OFF, **GREEDY)


@pytest.fixture(scope="module")
def teller(tiny_llama, truth):
    """An engine whose every draft token is right, so that blocks are accepted whole."""
    return make_engine(
        tiny_llama,
        drafters=("draft",),
        draft_proposer=TellingProposer({len(PROMPT): PROMPT + truth}),
    )


@pytest.fixture(scope="module")
def stop_at(truth):
    """Index of a token of `truth` that none before it equals, in the middle of a block of 8."""
    return next(i for i in range(3, 7) if truth[i] not in truth[:i])


def ended(engine, k, **params):
    """Outputs of one request, their summaries checked against each other."""
    wanted = {**GREEDY, **params}
    outputs = run(engine, [request(PROMPT, speculation=fixed(k), logprobs=0, **wanted)])["r"]
    ids, last = token_ids(outputs), outputs[-1]
    logprobs = [position for output in outputs for position in output.logprobs or ()]
    assert [position.token_id for position in logprobs] == ids
    assert last.metrics.num_output_tokens == len(ids)
    stats = last.metrics.stats
    assert 1 + stats.num_steps + stats.num_emitted_accepted_tokens >= len(ids)
    return ids, last, "".join(output.text for output in outputs)


@pytest.mark.parametrize("k", ALL_K)
@pytest.mark.parametrize("room", [3, 1, 0, -1], ids=lambda r: f"cap{r:+d}")
def test_a_stop_token_inside_a_block_wins_over_a_later_cap(teller, truth, stop_at, k, room):
    """Case *10: the stop ends it where it stands; at the cap it is still a stop; beyond, length."""
    num_to_stop = stop_at + 1
    ids, last, _ = ended(teller, k, stop_token_ids=(truth[stop_at],), max_tokens=num_to_stop + room)
    if room >= 0:
        assert ids == truth[:num_to_stop]
        assert (last.finish_reason, last.stop_reason) == ("stop", truth[stop_at])
    else:
        assert ids == truth[: num_to_stop - 1]
        assert (last.finish_reason, last.stop_reason) == ("length", None)


def test_the_stop_really_was_inside_an_accepted_block(teller, truth, stop_at):
    outputs = run(
        teller,
        [request(PROMPT, speculation=fixed(8), **GREEDY | {"stop_token_ids": (truth[stop_at],)})],
    )["r"]
    assert [len(output.token_ids) for output in outputs] == [1, stop_at]
    assert outputs[-1].num_accepted_tokens == 8
    assert outputs[-1].metrics.stats.num_emitted_accepted_tokens == stop_at


@pytest.fixture(scope="module", params=["itself", "teller"])
def with_eos(request, tiny_llama, truth, stop_at):
    """An engine for which a token of the greedy text is EOS, drafted by itself or by the truth."""
    if request.param == "itself":
        engine = make_engine(tiny_llama, tiny_llama, ("draft",))
    else:
        proposer = TellingProposer({len(PROMPT): PROMPT + truth})
        engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=proposer)
    engine.limits = replace(engine.limits, eos_token_ids=frozenset({truth[stop_at]}))
    return engine


@pytest.mark.parametrize("k", ALL_K)
def test_eos_inside_a_block_ends_the_output(with_eos, truth, stop_at, k):
    """Case *11: declare a token that greedy decoding produced as EOS; it ends there at every K."""
    ids, last, _ = ended(with_eos, k, ignore_eos=False)
    assert ids == truth[: stop_at + 1]
    assert (last.finish_reason, last.stop_reason) == ("stop", None)


@pytest.mark.parametrize("k", ALL_K)
def test_a_stop_string_inside_a_block_cuts_text_and_tokens(plain, teller, truth, k):
    decode = plain.tokenizer.decode
    whole = decode(truth, skip_special_tokens=True)
    stop = next(
        whole[i : i + 2]
        for i in range(8, len(whole) - 2)
        if "�" not in whole[i : i + 2] and whole.find(whole[i : i + 2]) == i
    )
    expected = run(plain, [request(PROMPT, speculation=OFF, stop=(stop,), **GREEDY)])["r"]
    ids, last, text = ended(teller, k, stop=(stop,))
    assert ids == token_ids(expected)
    assert text == "".join(output.text for output in expected)
    assert text == whole[: whole.index(stop)]
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("k", ALL_K)
def test_the_context_ends_inside_a_block(tiny_llama, truth, k):
    engine = make_engine(
        tiny_llama,
        drafters=("draft",),
        draft_proposer=TellingProposer({len(PROMPT): PROMPT + truth}),
        max_model_len=len(PROMPT) + 13,
    )
    ids, last, _ = ended(engine, k)
    assert ids == truth[:13]
    assert last.finish_reason == "length"


@pytest.mark.parametrize("num_prompt_tokens", [60, 100])
def test_a_draft_with_a_shorter_context_stops_drafting(
    plain, tiny_llama, tiny_draft, num_prompt_tokens
):
    """Case *12: draft limit 64, target 256: K becomes 0 past the draft's limit, nothing else."""
    prompt = random_prompt(num_prompt_tokens, seed=num_prompt_tokens)
    expected = generate(plain, prompt, speculation=OFF, **GREEDY)
    engine = make_engine(
        tiny_llama, tiny_draft, ("draft",), draft_max_model_len=64, max_model_len=256
    )
    outputs = run(engine, [request(prompt, speculation=fixed(3), **GREEDY)])["r"]
    assert token_ids(outputs) == expected
    num_known, num_drafted = num_prompt_tokens, 0
    for output in outputs:
        if output.draft_token_ids:
            assert num_known + len(output.draft_token_ids) <= 64
        num_drafted += len(output.draft_token_ids)
        num_known += len(output.token_ids)
    assert (num_drafted > 0) == (num_prompt_tokens < 64)
    assert outputs[-1].metrics.disabled_reason == "draft_context_full"


def test_a_sequence_that_ends_as_its_prefill_is_made_up_for_is_forgotten(tiny_llama):
    """Preempted with one token to go, it ends in the prefill that computes its text again: nobody
    verified anything for it in that step, and the controller must forget it all the same."""
    engine = make_engine(tiny_llama)
    closed = []
    engine.controller.close = closed.append
    params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 4}
    sequence = engine.add_request(request(PROMPT, speculation=fixed(0), **params))
    while sequence.num_output_tokens < 3:
        engine.step()
    engine.scheduler._residents._preempt(sequence)
    outputs = engine.step()
    assert outputs[-1].finish_reason == "length"
    assert sequence.num_preemptions == 1
    assert closed == [sequence.seq_id]
