"""Streams of requests with `explain`, from a tiny engine whose draft tokens are told and spoilt."""

from __future__ import annotations

import json

import pytest

from deployments.gateway_service import GatewayService
from deployments.http_handlers import HttpHandlers
from deployments.prompts import Prompter
from deployments.settings import AppSettings
from deployments.step_tokens import step_tokens
from specdec.model.token_bytes import TokenBytes
from specdec.sequence import SequenceOutput
from tests.tokenizers_of_all_kinds import byte_level, sentencepiece
from tests.unit.deployments.test_front_door import Post
from tests.unit.engine.engine_harness import (
    OFF,
    TellingProposer,
    generate,
    make_engine,
    random_prompt,
)

PROMPT = random_prompt(11, seed=5)
K = 4
MAX_TOKENS = 24
BODY = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
# Random weights write bytes that are no characters; these answers have letters alone.
LETTERS_PROMPT = random_prompt(12, seed=6)
EXPLAIN = {"mode": "fixed", "k": K, "explain": True}


class EngineTarget:
    """Runs requests on an engine in this process, step by step."""

    def __init__(self, engine) -> None:
        self.engine = engine

    async def describe_all(self):
        return [self.engine.limits]

    async def merged(self, requests):
        index = {request.request_id: i for i, request in enumerate(requests)}
        for output in self.engine.generate(requests):
            yield index[output.request_id], output


@pytest.fixture(scope="module")
def letters(tiny_tokenizer) -> dict:
    ids = [i for i in range(3, len(tiny_tokenizer)) if tiny_tokenizer.decode([i]).isalpha()]
    return {"prompt": LETTERS_PROMPT, "allowed_token_ids": ids}


def truth_of(tiny_llama, prompt, **params) -> list[int]:
    greedy = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "speculation": OFF}
    return generate(make_engine(tiny_llama), prompt, **greedy, **params)


@pytest.fixture(scope="module")
def truth(tiny_llama) -> list[int]:
    return truth_of(tiny_llama, PROMPT)


@pytest.fixture(scope="module")
def letters_truth(tiny_llama, letters) -> list[int]:
    allowed = letters["allowed_token_ids"]
    return truth_of(tiny_llama, LETTERS_PROMPT, allowed_token_ids=tuple(allowed))


@pytest.fixture(params=[None, 0, 2], ids=["all accepted", "none accepted", "two accepted"])
def wrong_at(request):
    return request.param


@pytest.fixture
def handlers(tiny_llama, tiny_tokenizer, truth, letters_truth, wrong_at) -> HttpHandlers:
    known = {11: PROMPT + truth, 12: LETTERS_PROMPT + letters_truth}
    teller = TellingProposer(known, wrong_at)
    engine = make_engine(tiny_llama, drafters=("draft",), draft_proposer=teller)
    settings = AppSettings.model_validate(
        {
            "target": {
                "target": {"model": "tiny"},
                "speculation": {"drafters": ["draft"], "max_num_speculative_tokens": 8},
            },
            "draft": {"draft": {"model": "tiny"}, "max_num_speculative_tokens": 8},
        }
    )
    return HttpHandlers(GatewayService(settings, EngineTarget(engine), Prompter(tiny_tokenizer)))


async def whole(handlers, **body):
    return json.loads((await handlers.completions(Post({**BODY, **body}))).body)


async def chunks(handlers, **body) -> list[dict]:
    asked = {**BODY, **body, "stream": True, "stream_options": {"include_usage": True}}
    response = await handlers.completions(Post(asked))
    events = [event async for event in response.body_iterator]
    assert events.pop() == b"data: [DONE]\n\n"
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


async def test_tokens_join_to_the_text_and_counts_to_those_of_the_response(handlers):
    *stream, _, last = await chunks(handlers, speculation=EXPLAIN)
    steps = [chunk["choices"][0]["specdec"] for chunk in stream]
    text = "".join("".join(step["tokens"]) for step in steps)
    assert text == "".join(chunk["choices"][0]["text"] for chunk in stream)
    assert text == (await whole(handlers))["choices"][0]["text"]
    assert all(len(step["tokens"]) == len(step["token_ids"]) for step in steps)
    report = last["metrics"]["speculative_decoding"]
    drafted = [len(step["draft_token_ids"]) for step in steps if step["draft_token_ids"]]
    accepted = [step["num_accepted_tokens"] for step in steps if step["draft_token_ids"]]
    assert (drafted, accepted) == (report["per_step_drafted"], report["per_step_accepted"])
    assert sum(len(step["token_ids"]) for step in steps) == last["usage"]["completion_tokens"]


async def test_accepted_rejected_and_own_tokens_can_be_told_apart(handlers, wrong_at, truth):
    *stream, _, _ = await chunks(handlers, speculation=EXPLAIN)
    first, *steps = [chunk["choices"][0]["specdec"] for chunk in stream]
    assert (first["draft_token_ids"], first["draft_tokens"], first["drafter"]) == ([], [], None)
    position = 1
    for step in steps:
        if position + K + 1 > MAX_TOKENS:
            break
        num_accepted = K if wrong_at is None else wrong_at
        assert step["num_accepted_tokens"] == num_accepted
        assert step["drafter"] == "draft"
        drafts, emitted = step["draft_token_ids"], step["token_ids"]
        assert emitted == truth[position : position + num_accepted + 1]
        assert drafts[:num_accepted] == emitted[:num_accepted]
        assert len(drafts) == K
        if num_accepted < K:
            assert drafts[num_accepted] != emitted[num_accepted]
        position += len(emitted)


async def test_a_draft_token_reads_as_the_same_token_in_the_output_does(
    handlers, tiny_tokenizer, letters
):
    *stream, _, _ = await chunks(handlers, speculation=EXPLAIN, **letters)
    for step in (chunk["choices"][0]["specdec"] for chunk in stream):
        for token_id, text in zip(step["draft_token_ids"], step["draft_tokens"], strict=True):
            assert text == tiny_tokenizer.decode([token_id])


@pytest.mark.parametrize("keep", [False, True], ids=["cut", "kept"])
async def test_a_stop_string_cuts_the_tokens_as_it_cuts_the_text(
    handlers, tiny_tokenizer, letters, letters_truth, keep
):
    text = tiny_tokenizer.decode(letters_truth)
    stop = text[7:12]
    more = {**letters, "stop": [stop], "include_stop_str_in_output": keep}
    *stream, last = await chunks(handlers, speculation=EXPLAIN, **more)
    steps = [c["choices"][0]["specdec"] for c in stream if "specdec" in c["choices"][0]]
    answer = await whole(handlers, **more)
    assert answer["choices"][0]["stop_reason"] == stop
    assert answer["choices"][0]["text"] == text[: text.index(stop) + len(stop) * keep]
    assert "".join("".join(step["tokens"]) for step in steps) == answer["choices"][0]["text"]
    assert sum(len(s["token_ids"]) for s in steps) == answer["usage"]["completion_tokens"]
    report = last["metrics"]["speculative_decoding"]
    assert sum(s["num_accepted_tokens"] for s in steps) == report["num_accepted_draft_tokens"]
    emitted = sum(min(len(s["token_ids"]), s["num_accepted_tokens"]) for s in steps)
    assert emitted == report["num_emitted_accepted_draft_tokens"]


async def test_chat_carries_it_too(handlers):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    asked = {**body, "stream": True, "speculation": {"mode": "off", "explain": True}}
    response = await handlers.chat(Post(asked))
    events = [event async for event in response.body_iterator][:-2]
    stream = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]
    for choice in stream:
        assert "".join(choice["specdec"]["tokens"]) == choice["delta"]["content"]
        assert choice["specdec"]["draft_token_ids"] == []


async def test_without_explain_nothing_changes(handlers):
    for wish in ({"mode": "fixed", "k": K}, {"mode": "fixed", "k": K, "explain": False}):
        *stream, _ = await chunks(handlers, speculation=wish)
        keys = {"index", "text", "logprobs", "finish_reason", "stop_reason"}
        assert all(set(chunk["choices"][0]) == keys for chunk in stream)


def test_a_draft_token_keeps_the_space_that_its_decoder_drops_at_a_texts_start():
    tokenizer = sentencepiece()
    the, cat = (tokenizer.token_to_id(f"\u2581{word}") for word in ("the", "cat"))
    output = SequenceOutput(1, "r", [the], draft_token_ids=[cat, the])
    vocabulary = TokenBytes(tokenizer)
    assert step_tokens(output, [the], vocabulary)["draft_tokens"] == [" cat", " the"]
    assert step_tokens(output, [], vocabulary)["draft_tokens"] == ["cat", " the"]


def test_parts_of_a_character_are_told_apart():
    drafted = byte_level().encode("\u20ac").ids[:2]
    output = SequenceOutput(1, "r", [0], draft_token_ids=drafted)
    told = step_tokens(output, [0], TokenBytes(byte_level()))["draft_tokens"]
    assert told == [r"\xe2", r"\x82"]
