"""What `openai` does around a request, against the demo: its async client, raw responses, time
limits, retries. The answers themselves are compared with the engine's in tests/serve."""

from __future__ import annotations

import asyncio

import httpx2
import openai
import pytest

from tests.clients.speculation_counters import idle_counters

TIMEOUT_S = 120.0
PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Name three colours."}]
USAGE = {"include_usage": True}


@pytest.fixture
def sent() -> list[httpx2.Request]:
    """Every request that `client` sent, retries included."""
    return []


@pytest.fixture
def client(service, sent):
    http = openai.DefaultHttpxClient(trust_env=False, event_hooks={"request": [sent.append]})
    with openai.OpenAI(
        base_url=f"{service.http_url}/v1",
        api_key="unused",
        timeout=TIMEOUT_S,
        max_retries=2,
        http_client=http,
    ) as made:
        yield made


@pytest.fixture
async def async_client(service):
    async with openai.AsyncOpenAI(
        base_url=f"{service.http_url}/v1", api_key="unused", timeout=TIMEOUT_S
    ) as made:
        yield made


async def test_async_streams_run_together_and_say_what_they_say_alone(service, async_client):
    async def ask(prompt: str) -> tuple[str, object]:
        stream = await async_client.completions.create(
            model=service.model,
            prompt=prompt,
            max_tokens=16,
            seed=5,
            stream=True,
            stream_options=USAGE,
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        return text, chunks[-1]

    prompts = [PROMPT, "The end of the", "The capital of France is"]
    together = await asyncio.gather(*map(ask, prompts))
    for prompt, (text, last) in zip(prompts, together, strict=True):
        alone = await async_client.completions.create(
            model=service.model, prompt=prompt, max_tokens=16, seed=5
        )
        assert text == alone.choices[0].text
        assert last.choices == []
        assert last.usage == alone.usage.model_copy(
            update={"prompt_tokens_details": last.usage.prompt_tokens_details}
        )


async def test_leaving_an_async_stream_ends_its_request(service, async_client):
    stream = await async_client.completions.create(
        model=service.model,
        prompt=PROMPT,
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for _ in stream:
        break
    await stream.close()
    before = idle_counters(service.http_url)
    assert idle_counters(service.http_url).since(before).generated == 0


def test_a_chat_with_fixed_speculation_reports_it(client, service):
    answer = client.chat.completions.create(
        model=service.model,
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        extra_body={"speculation": {"mode": "fixed", "k": 3}, "ignore_eos": True},
    )
    report = answer.model_extra["metrics"]["speculative_decoding"]
    assert (report["mode"], report["num_spec_tokens"]) == ("fixed", 3)
    assert max(report["per_step_drafted"]) <= 3
    assert answer.usage.completion_tokens == 24


def test_usage_of_every_chunk_grows_to_that_of_the_last(client, service):
    stream = client.chat.completions.create(
        model=service.model,
        messages=MESSAGES,
        max_tokens=12,
        stream=True,
        stream_options={**USAGE, "continuous_usage_stats": True},
    )
    counted = [chunk.usage.completion_tokens for chunk in stream]
    assert counted == sorted(counted)
    assert 0 < counted[-1] <= 12


def test_the_chat_helper_accumulates_a_stream(client, service):
    asked = {"model": service.model, "messages": MESSAGES, "max_tokens": 12, "seed": 3}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        (final,) = stream.current_completion_snapshot.choices
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.message.content == whole.choices[0].message.content
    assert final.finish_reason == whole.choices[0].finish_reason


def test_raw_responses_carry_headers_and_the_same_object(client, service):
    asked = {"model": service.model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    raw = client.completions.with_raw_response.create(
        **asked, extra_headers={"X-Request-Id": "raw-one"}
    )
    answer = raw.parse()
    assert raw.http_response.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.retries_taken == 0
    assert answer.id == "cmpl-raw-one"
    assert answer.choices[0].text == client.completions.create(**asked).choices[0].text


def test_raw_streams_are_event_streams_that_end_with_done(client, service):
    with client.completions.with_streaming_response.create(
        model=service.model, prompt=PROMPT, max_tokens=4, stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in raw.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_what_cannot_succeed_is_asked_once(client, service, sent):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model=service.model,
            messages=MESSAGES,
            extra_body={"speculation": {"mode": "fixed", "k": -1}},
        )
    assert (bad.value.param, bad.value.type) == ("speculation.k", "BadRequestError")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert unknown.value.param == "model"
    assert len(sent) == 2, "neither was tried again"


def test_a_time_limit_of_the_clients_is_tried_again_and_leaves_nothing_running(
    client, service, sent
):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05, max_retries=1).completions.create(
            model=service.model,
            prompt=PROMPT,
            max_tokens=400,
            extra_body={"ignore_eos": True},
        )
    assert [request.headers["x-stainless-retry-count"] for request in sent] == ["0", "1"]
    before = idle_counters(service.http_url)
    assert idle_counters(service.http_url).since(before).generated == 0


def test_a_time_limit_of_the_request_ends_with_504(client, service, sent):
    with pytest.raises(openai.InternalServerError) as late:
        client.with_options(max_retries=0).completions.create(
            model=service.model,
            prompt=PROMPT,
            max_tokens=400,
            extra_body={"ignore_eos": True, "timeout": 0.05},
        )
    assert late.value.status_code == 504
    assert len(sent) == 1
