"""What real clients send: nulls, floats, scoring, open turns, tool calls; and names in errors."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from deployments.openai_requests import ChatBody, CompletionBody, TokenizeBody, parse
from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams, SpeculationParams
from tests.scripted_target import ScriptedTarget, answer, events, handlers_of
from tests.unit.deployments.test_step_tokens import EngineTarget
from tests.unit.engine.engine_harness import generate, make_engine

LIMIT = 2**20
REQUIRED = {CompletionBody: {"prompt": "a"}, ChatBody: {"messages": [{"role": "user"}]}}
USER = {"role": "user", "content": "hi"}


def parsed(kind, **fields):
    return parse(kind, json.dumps({**REQUIRED.get(kind, {}), **fields}).encode(), LIMIT)


def params_of(tiny_tokenizer, kind, **fields):
    prompter = handlers_of(tiny_tokenizer, None)._service.prompter
    return parsed(kind, **fields).sampling_params(prompter, 4, None, None)


@pytest.fixture
def handlers(tiny_tokenizer):
    target = ScriptedTarget(tiny_tokenizer, tiny_tokenizer.encode("abcdefgh"), num_cached_tokens=1)
    return handlers_of(tiny_tokenizer, target)


def prompts_of(handlers) -> list[list[int]]:
    return [request.prompt_token_ids for request in handlers._service.target.requests]


OPTIONAL = [
    (kind, name)
    for kind in (CompletionBody, ChatBody, TokenizeBody)
    for name, field in kind.model_fields.items()
    if not field.is_required()
]


@pytest.mark.parametrize(("kind", "name"), OPTIONAL, ids=lambda v: getattr(v, "__name__", v))
def test_null_is_as_if_absent(kind, name):
    assert parsed(kind, **{name: None}) == parsed(kind)


def test_null_within_objects_is_as_if_absent(tiny_tokenizer):
    options = {"include_usage": None, "continuous_usage_stats": None}
    assert parsed(CompletionBody, stream_options=options).stream_options.include_usage is False
    given = dict.fromkeys(SpeculationParams.__slots__)
    params = params_of(tiny_tokenizer, CompletionBody, speculation=given, logit_bias={"5": None})
    assert params.speculation == SpeculationParams()
    assert params.logit_bias == {}


WHOLE = ("max_tokens", "n", "top_k", "seed", "min_tokens", "prompt_logprobs", "logprobs")


@pytest.mark.parametrize("name", [*WHOLE, "speculation_k", "truncate_prompt_tokens"])
def test_whole_numbers_may_be_floats(name):
    value = getattr(parsed(CompletionBody, **{name: 16.0}), name)
    assert (value, type(value)) == (16, int)
    for wrong in (6000.5, True, "16"):
        with pytest.raises(InvalidRequestError) as error:
            parsed(CompletionBody, **{name: wrong})
        assert error.value.field == name
    for name in ("max_completion_tokens", "top_logprobs"):
        assert getattr(parsed(ChatBody, **{name: 3.0}), name) == 3


def test_whole_numbers_in_lists_and_objects_may_be_floats(tiny_tokenizer):
    assert parsed(CompletionBody, prompt=[1.0, 2]).prompts() == [[1, 2]]
    assert parsed(CompletionBody, prompt=[[1.0], [2]]).prompts() == [[1], [2]]
    assert parsed(CompletionBody, stop_token_ids=[3.0, 1]).stop_token_ids == [3, 1]
    params = params_of(tiny_tokenizer, CompletionBody, speculation={"mode": "fixed", "k": 4.0})
    assert (params.speculation.k, type(params.speculation.k)) == (4, int)
    for change, field in (
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [[1.5]]}, "prompt"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids.0"),
    ):
        with pytest.raises(InvalidRequestError) as error:
            parsed(CompletionBody, **change)
        assert error.value.field == field
    with pytest.raises(InvalidRequestError) as error:
        params_of(tiny_tokenizer, CompletionBody, speculation={"mode": "fixed", "k": 4.5})
    assert error.value.field == "speculation.k"


def test_a_seed_of_minus_one_is_none(tiny_tokenizer):
    assert params_of(tiny_tokenizer, ChatBody, seed=-1).seed is None
    assert params_of(tiny_tokenizer, ChatBody, seed=-2).seed == -2


def test_an_empty_nucleus_is_greedy(tiny_llama):
    SamplingParams(top_p=0).validate(10)
    engine = make_engine(tiny_llama)
    prompt = [5, 6, 7, 8]
    for top_p in (0, 0.0):
        got = generate(engine, prompt, max_tokens=12, temperature=1.0, top_p=top_p, seed=3)
        assert got == generate(engine, prompt, max_tokens=12, temperature=0.0)


def test_no_logprobs_may_be_asked_for_in_two_ways():
    parsed(ChatBody, logprobs=False, top_logprobs=0).check_supported()
    with pytest.raises(InvalidRequestError) as error:
        parsed(ChatBody, logprobs=False, top_logprobs=1).check_supported()
    assert error.value.field == "top_logprobs"


# -- scoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_scores_of_token_arrays_are_the_models_own(tiny_llama, tiny_tokenizer, max_tokens):
    """As lm-eval asks: batches of token ids, echoed, with the likeliest token at each position."""
    engine = make_engine(tiny_llama)
    handlers = handlers_of(tiny_tokenizer, EngineTarget(engine))
    batch = [[7], [5, 9, 13], list(range(3, 60)), [11, 11, 11, 250, 4]]
    asked = {"prompt": batch, "max_tokens": max_tokens, "echo": True, "logprobs": 1}
    scored = await answer(handlers, "completions", **asked, temperature=0, seed=1234)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    for ids, choice in zip(batch, scored["choices"], strict=True):
        told = choice["logprobs"]
        assert len(told["tokens"]) == len(ids) + max_tokens
        with torch.no_grad():
            laws = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values = told["token_logprobs"][: len(ids)]
        assert values[0] is None
        assert values[1:] == pytest.approx(
            [float(laws[i, token]) for i, token in enumerate(ids[1:])], abs=1e-9
        )
        for i, (token, top) in enumerate(
            zip(told["tokens"][1 : len(ids)], told["top_logprobs"][1 : len(ids)], strict=True)
        ):
            is_greedy = max(top, key=top.get) == token
            assert is_greedy == (int(laws[i].argmax()) == ids[i + 1])
    assert scored["usage"]["completion_tokens"] == max_tokens * len(batch)
    if max_tokens == 0:
        assert {choice["finish_reason"] for choice in scored["choices"]} == {"length"}
        texts = [tiny_tokenizer.decode(ids) for ids in batch]
        assert [choice["text"] for choice in scored["choices"]] == texts
        stream = await events(handlers, "completions", **asked, temperature=0)
        assert "".join(e["choices"][0]["text"] for e in stream) == "".join(texts)
    assert not engine.has_work


async def test_a_prompt_as_long_as_the_context_can_be_scored(tiny_llama, tiny_tokenizer):
    engine = make_engine(tiny_llama)
    limit = engine.limits.max_model_len
    handlers = handlers_of(tiny_tokenizer, EngineTarget(engine))
    asked = {"prompt": [5] * limit, "echo": True, "logprobs": 0}
    scored = await answer(handlers, "completions", **asked, max_tokens=0)
    assert len(scored["choices"][0]["logprobs"]["tokens"]) == limit
    for max_tokens, prompt in ((1, [5] * limit), (0, [5] * (limit + 1))):
        more = {**asked, "prompt": prompt, "max_tokens": max_tokens}
        with pytest.raises(InvalidRequestError) as error:
            await answer(handlers, "completions", **more)
        assert error.value.field == "prompt"


async def test_nothing_is_scored_and_nothing_written_only_by_request(handlers):
    echoed = await answer(handlers, "completions", prompt="ab", echo=True, max_tokens=0)
    assert (echoed["choices"][0]["text"], echoed["choices"][0]["logprobs"]) == ("ab", None)
    for kind, body, field in (
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("chat", {"messages": [USER], "max_tokens": 0}, "max_tokens"),
        ("chat", {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
    ):
        with pytest.raises(InvalidRequestError) as error:
            await answer(handlers, kind, **body)
        assert error.value.field == field


def test_the_engine_computes_a_prompt_alone(tiny_llama):
    engine = make_engine(tiny_llama)
    assert generate(engine, [5, 6, 7], max_tokens=0, prompt_logprobs=1) == []
    assert engine.counters.num_generation_tokens == 0
    assert not engine.has_work


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"max_completion_tokens": -1}, "max_completion_tokens"),
        ("chat", {"max_tokens": -1}, "max_tokens"),
        ("chat", {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
        ("completions", {"speculation_k": -1}, "speculation_k"),
        ("completions", {"speculation_mode": "fast"}, "speculation_mode"),
        ("completions", {"speculation": {"mode": "fast"}}, "speculation.mode"),
        ("completions", {"logprobs": 21, "echo": True}, "logprobs"),
    ],
    ids=str,
)
async def test_an_error_names_the_field_that_was_sent(handlers, path, change, field):
    body = {"chat": {"messages": [USER]}, "completions": {"prompt": "a"}}[path]
    with pytest.raises(InvalidRequestError) as error:
        await answer(handlers, path, **{**body, **change})
    assert error.value.field == field
    assert error.value.message.startswith(f"{field}: ")
    assert handlers._service.target.requests == []


# -- conversations -----------------------------------------------------------------------------


async def template_text(handlers, tiny_tokenizer, messages, **more) -> str:
    await answer(handlers, "chat", messages=messages, max_tokens=1, **more)
    return tiny_tokenizer.decode(prompts_of(handlers)[-1])


async def test_a_final_message_is_continued(handlers, tiny_tokenizer):
    messages = [USER, {"role": "assistant", "content": "The answer"}]
    for more in ({}, {"add_generation_prompt": False}):
        text = await template_text(
            handlers, tiny_tokenizer, messages, continue_final_message=True, **more
        )
        assert text.endswith("<|im_start|>assistant\nThe answer")
    closed = await template_text(handlers, tiny_tokenizer, messages)
    assert closed.endswith("The answer<|im_end|>\n<|im_start|>assistant\n")
    empty = [USER, {"role": "assistant", "content": None}]
    text = await template_text(handlers, tiny_tokenizer, empty, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("path", ["chat", "tokenize"])
async def test_what_cannot_be_continued_is_named(handlers, path):
    open_turn = [USER, {"role": "assistant", "content": "The"}]
    for messages, more, field in (
        (open_turn, {"add_generation_prompt": True}, "add_generation_prompt"),
        ([USER], {}, "continue_final_message"),
    ):
        with pytest.raises(InvalidRequestError) as error:
            await answer(handlers, path, messages=messages, continue_final_message=True, **more)
        assert error.value.field == field


async def test_a_developer_is_a_system_where_the_template_knows_none(handlers, tiny_tokenizer):
    messages = [{"role": "developer", "content": "be brief"}, USER]
    text = await template_text(handlers, tiny_tokenizer, messages)
    assert text.startswith("<|im_start|>system\nbe brief")
    own = tiny_tokenizer.chat_template + "{# developer #}"
    kept = handlers._service.prompter.chat(messages, own)
    assert tiny_tokenizer.decode(kept).startswith("<|im_start|>developer\nbe brief")


TOOLS = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}("
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }};{% endfor %})"
    "{% endfor %}{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.description }}{% endfor %}"
)


def asked_for(arguments):
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function, "index": None}
    return {"role": "assistant", "content": None, "tool_calls": [call], "name": None}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Paris", "days": 2}', "city=Paris;days=2;"),
        ({"city": "Paris"}, "city=Paris;"),
        ("{}", ""),
        ("", ""),
        (None, ""),
    ],
)
async def test_arguments_reach_the_template_as_a_mapping(tiny_tokenizer, arguments, shown):
    target = ScriptedTarget(tiny_tokenizer, [70, 71])
    handlers = handlers_of(tiny_tokenizer, target, allow_client_chat_template=True)
    result = {"role": "tool", "content": "sunny", "tool_call_id": "1"}
    tools = [{"type": "function", "function": {"name": "weather", "description": None}}]
    messages = [USER, asked_for(arguments), result]
    text = await template_text(handlers, tiny_tokenizer, messages, chat_template=TOOLS, tools=tools)
    assert text == f"[user] hi[assistant] weather({shown})[tool] sunny"


@pytest.mark.parametrize("arguments", ["{oops", "[1]", "5", 5, "{" * 100_000])
async def test_arguments_that_are_no_object_are_named(handlers, arguments):
    with pytest.raises(InvalidRequestError) as error:
        await answer(handlers, "chat", messages=[USER, asked_for(arguments)])
    assert error.value.field == "messages.1.tool_calls.0.function.arguments"
    assert len(error.value.message) < 250


@pytest.mark.parametrize("calls", [5, [5], [{}], [{"function": "f"}]])
async def test_tool_calls_of_no_known_form_are_named(handlers, calls):
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    with pytest.raises(InvalidRequestError) as error:
        await answer(handlers, "chat", messages=[USER, message])
    assert error.value.field.startswith("messages.1.tool_calls")


async def test_a_refusal_is_what_the_assistant_said(handlers, tiny_tokenizer):
    parts = [{"type": "text", "text": "No: "}, {"type": "refusal", "refusal": "I will not."}]
    for message in (
        {"role": "assistant", "content": parts},
        {"role": "assistant", "content": None, "refusal": "No: I will not."},
        {"role": "assistant", "content": "No: I will not.", "refusal": None},
    ):
        text = await template_text(handlers, tiny_tokenizer, [USER, message, USER])
        assert "<|im_start|>assistant\nNo: I will not.<|im_end|>" in text
    with pytest.raises(InvalidRequestError) as error:
        await answer(handlers, "chat", messages=[{"role": "user", "content": parts}])
    assert error.value.field == "messages.0.content"


# -- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 3, 8])
@pytest.mark.parametrize("path", ["chat", "completions"])
async def test_content_and_the_reason_to_end_never_share_a_chunk(handlers, path, max_tokens):
    body = {"chat": {"messages": [USER]}, "completions": {"prompt": "abc"}}[path]
    asked = {**body, "max_tokens": max_tokens, "n": 2}
    whole = await answer(handlers, path, **asked)
    *stream, last = await events(handlers, path, **asked, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for index in (0, 1):
        mine = [e["choices"][0] for e in stream if e["choices"][0]["index"] == index]
        *content, end = mine
        assert [choice["finish_reason"] for choice in content] == [None] * len(content)
        assert end["finish_reason"] == "length"
        if path == "chat":
            assert end["delta"] == {}
            assert content[0]["delta"]["role"] == "assistant"
            text = "".join(choice["delta"]["content"] for choice in content)
        else:
            assert end["text"] == ""
            text = "".join(choice["text"] for choice in content)
        assert text == "abcdefgh"[:max_tokens]


async def test_usage_so_far_is_the_choices_own(handlers):
    asked = {"prompt": ["a", "abc"], "n": 2, "max_tokens": 4}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *stream, last = await events(handlers, "completions", **asked, stream_options=options)
    for event in stream:
        own = 1 if event["choices"][0]["index"] < 2 else len(prompts_of(handlers)[2])
        assert event["usage"]["prompt_tokens"] == own
    assert last["usage"]["prompt_tokens"] == 1 + len(prompts_of(handlers)[2])
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 2, "one of each prompt"
    assert last["usage"]["completion_tokens"] == 16
