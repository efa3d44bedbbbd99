"""Bad input over HTTP: OpenAI's error body, the right status, the field at fault by name."""

from __future__ import annotations

import contextlib
import json
import threading

import httpx
import openai as openai_package
import pytest

from tests.serve.harness import (
    CALL_TIMEOUT_S,
    MAX_MODEL_LEN,
    MAX_QUEUE,
    MAX_RUNNING,
    OPERATOR,
    holds_nothing,
    wait_until,
)

HEADERS = {"authorization": "Bearer key-a", "content-type": "application/json"}


def post(service, path, body, headers=HEADERS):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{service.url}{path}", content=content, headers=headers, timeout=30)


def error_of(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return error


BAD_COMPLETIONS = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [0, 100_000]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "the cat " * MAX_MODEL_LEN}, "prompt"),
    ({"prompt": "\ud800"}, "body"),
    ({}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -3}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 3.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"logit_bias": {"cat": 1}}, "logit_bias"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"stop": [""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [100_000]}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"min_tokens": 99}, "min_tokens"),
    ({"timeout": -1}, "timeout"),
    ({"suffix": "end"}, "suffix"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"speculation": {"mode": "fast"}}, "speculation.mode"),
    ({"speculation": {"kk": 3}}, "speculation.kk"),
    ({"speculation": {"mode": "fixed"}}, "speculation.k"),
    ({"speculation": {"mode": "fixed", "k": -1}}, "speculation.k"),
    ({"speculation": {"mode": "fixed", "k": "four"}}, "speculation.k"),
    ({"speculation": {"drafter": "medusa"}}, "speculation.drafter"),
    ({"speculation": {"verification": "typical"}}, "speculation.verification"),
    ({"speculation": {"epsilon": 0.3}}, "speculation.epsilon"),
    ({"speculation": 5}, "speculation"),
]


@pytest.mark.parametrize(("change", "field"), BAD_COMPLETIONS, ids=lambda v: str(v)[:40])
def test_completions_name_the_field_at_fault(service, change, field):
    body = {"model": "tiny", "prompt": "the cat", **change} if change else {"model": "tiny"}
    error = error_of(post(service, "/v1/completions", body), 400)
    assert error["type"] == "BadRequestError"
    assert error["param"] is not None
    assert error["param"].split(".")[0] == field.split(".")[0]
    assert error["param"].startswith(field)
    assert error["message"].strip()


BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "hello"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tool_choice"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
    ),
]


@pytest.mark.parametrize(("change", "field"), BAD_CHATS, ids=lambda v: str(v)[:40])
def test_chats_name_the_field_at_fault(service, change, field):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **change}
    error = error_of(post(service, "/v1/chat/completions", body), 400)
    assert error["param"].split(".")[0] == field


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b'{"prompt": "\xff\xfe"}', b"\x00" * 10],
    ids=["empty", "open", "list", "null", "string", "not-utf8", "zeros"],
)
def test_what_is_no_json_object_is_refused(service, content):
    error = error_of(post(service, "/v1/completions", content), 400)
    assert error["param"] == "body"


def test_a_body_of_ten_megabytes_is_refused(service):
    body = {"model": "tiny", "prompt": "a" * 10_000_000}
    error = error_of(post(service, "/v1/completions", body), 400)
    assert error["param"] == "body"


def test_unknown_fields_are_ignored_as_openai_does(openai):
    answer = openai.completions.create(
        model="tiny", prompt="the cat", max_tokens=2, user="me", extra_body={"new_field": 1}
    )
    assert answer.usage.completion_tokens == 2


def test_the_client_raises_its_own_classes(openai):
    with pytest.raises(openai_package.BadRequestError) as bad:
        openai.completions.create(model="tiny", prompt="the cat", temperature=5)
    assert (bad.value.param, bad.value.code, bad.value.type) == (
        "temperature",
        "400",
        "BadRequestError",
    )
    with pytest.raises(openai_package.NotFoundError) as unknown:
        openai.completions.create(model="gpt-9", prompt="the cat")
    assert unknown.value.param == "model"
    with pytest.raises(openai_package.BadRequestError):
        # Before the first token a stream fails like any other request.
        openai.completions.create(model="tiny", prompt="", stream=True)


def test_unknown_paths_and_methods(service):
    assert error_of(post(service, "/v1/nothing", {}), 404)["type"] == "NotFoundError"
    wrong = httpx.get(f"{service.url}/v1/completions", timeout=30)
    error_of(wrong, 405)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic key-a", "Bearer"])
def test_a_missing_or_wrong_key(service, path, authorization):
    headers = {"content-type": "application/json"}
    if authorization is not None:
        headers["authorization"] = authorization
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    assert error_of(post(service, path, body, headers), 401)["type"] == "AuthenticationError"


def test_keys_guard_everything_that_reads_the_model(service):
    for path in ("/v1/models", "/v1/models/tiny"):
        error_of(httpx.get(f"{service.url}{path}", timeout=30), 401)
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        error_of(post(service, path, body, {}), 401)
    with pytest.raises(openai_package.AuthenticationError):
        service.openai("wrong").models.list()


def test_a_full_queue_answers_429_with_retry_after(service, openai):
    """Four run and eight wait; one prompt list of 30 can never fit at once."""
    response = post(
        service,
        "/v1/completions",
        {"model": "tiny", "prompt": ["the cat"] * 30, "max_tokens": 200},
    )
    error = error_of(response, 429)
    assert error["type"] == "RateLimitError"
    assert int(response.headers["retry-after"]) >= 1
    wait_until(
        lambda: service.describe().stats.num_running == 0,
        CALL_TIMEOUT_S,
        "the others of it are aborted",
    )
    with pytest.raises(openai_package.RateLimitError):
        openai.completions.create(model="tiny", prompt=["the cat"] * 30, max_tokens=200)


def test_the_openai_client_gets_through_after_its_retries(service):
    """The queue is full when it asks first; it honours Retry-After and is served later."""
    is_full = threading.Event()

    def occupy():
        """With others of its kind more than run and queue hold, until they were seen full."""
        while not is_full.is_set():
            with contextlib.suppress(openai_package.RateLimitError):
                background.completions.create(
                    model="tiny",
                    prompt=["the cat"] * MAX_RUNNING,
                    max_tokens=230,
                    extra_body={"ignore_eos": True},
                )

    with service.openai() as background, service.openai(max_retries=10) as patient:
        occupants = [threading.Thread(target=occupy) for _ in range(1 + MAX_QUEUE // MAX_RUNNING)]
        for thread in occupants:
            thread.start()
        try:
            wait_until(
                lambda: service.describe().stats.num_waiting >= MAX_QUEUE,
                CALL_TIMEOUT_S,
                "a full queue",
            )
        finally:
            is_full.set()
        answer = patient.completions.create(model="tiny", prompt="the dog", max_tokens=2)
        assert answer.usage.completion_tokens == 2
        for thread in occupants:
            thread.join(CALL_TIMEOUT_S)
            assert not thread.is_alive()


def test_an_expired_request_ends_with_504_or_an_error_event(service, openai):
    slow = {"model": "tiny", "prompt": "the cat", "max_tokens": 250}
    extra = {"ignore_eos": True, "timeout": 0.02}
    with pytest.raises(openai_package.InternalServerError) as late:
        openai.completions.create(**slow, extra_body=extra)
    assert late.value.status_code == 504


def test_a_failure_mid_stream_is_an_event_and_then_done(service):
    body = {
        "model": "tiny",
        "prompt": "the cat",
        "max_tokens": 240,
        "stream": True,
        "ignore_eos": True,
    }

    def events_within(timeout_s):
        """None where the first token took longer than that, as it may on a busy machine."""
        asked = {**body, "timeout": timeout_s}
        with httpx.stream(
            "POST", f"{service.url}/v1/completions", json=asked, headers=HEADERS, timeout=30
        ) as response:
            if response.status_code == 504:
                return None
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            return [line.removeprefix("data: ") for line in response.iter_lines() if line]

    events = next(filter(None, map(events_within, (0.125, 0.25, 0.5, 1, 2, 4, 8))))
    assert events[-1] == "[DONE]"
    assert len(events) > 2, "some text came before"
    error = json.loads(events[-2])["error"]
    assert error["code"] == 504
    assert error["type"] == "TimeoutError"


def test_leaving_a_stream_frees_its_blocks_long_before_the_end(service, openai):
    wait_until(lambda: holds_nothing(service.name), CALL_TIMEOUT_S, "an idle application")
    before = service.describe().stats.counters
    stream = openai.completions.create(
        model="tiny",
        prompt="the cat sat on the mat",
        max_tokens=230,
        stream=True,
        extra_body={"ignore_eos": True, "speculation": {"mode": "fixed", "k": 1}},
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: holds_nothing(service.name), CALL_TIMEOUT_S, "it is gone in both")
    after = service.describe().stats.counters
    assert after.finished["abort"] == before.finished["abort"] + 1
    assert 0 < after.num_generation_tokens - before.num_generation_tokens < 230


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_stranger_is_refused_before_the_body_is_looked_at(service, path):
    """What costs seconds to parse, what is larger than allowed, and what is no JSON at all: through
    the proxy, the answer is about the key, and comes while others are served."""
    for body in (b'{"prompt": [' + b"{}," * 300_000 + b"{}]}", b"x" * 5_000_000, b"{"):
        response = post(service, path, body, {"authorization": "Bearer wrong"})
        error = error_of(response, 401)
        assert (error["type"], error["param"]) == ("AuthenticationError", None)
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/live", "/metrics"])
def test_what_tells_of_all_tenants_is_for_operators(service, path):
    def get(headers):
        return httpx.get(f"{service.url}{path}", headers=headers, timeout=CALL_TIMEOUT_S)

    error_of(get({}), 401)
    error = error_of(get(HEADERS), 403)
    assert error["type"] == "PermissionDeniedError"
    assert get(OPERATOR).status_code == 200
