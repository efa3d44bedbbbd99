"""What the gateway refuses before it works on a caller's text, over HTTP and gRPC, without Ray."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from types import SimpleNamespace

import grpc
import pytest
from fastapi import Request

from deployments.api_keys import Caller
from deployments.gateway import Gateway, http_app
from deployments.gateway_service import GatewayService
from deployments.grpc_handlers import GrpcHandlers
from deployments.http_handlers import HttpHandlers
from deployments.openai_requests import CompletionBody, parse
from deployments.prompts import Prompter
from deployments.settings import AppSettings
from specdec.engine.request import BYTES_PER_LOGPROB
from specdec.errors import (
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestNotFoundError,
    SpecdecError,
    UnauthenticatedError,
)
from specdec.params import SamplingParams
from specdec.v1 import inference_pb2 as pb

MAX_MODEL_LEN = 8
SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"]
VOCAB_SIZE = 288
MESSAGES = [{"role": "user", "content": "hi"}]


class Watched(Prompter):
    """Remembers which threads worked on text."""

    def __init__(self, tokenizer) -> None:
        super().__init__(tokenizer)
        self.threads: list[threading.Thread] = []

    def encode(self, text, *arguments, **options):
        self.threads.append(threading.current_thread())
        return super().encode(text, *arguments, **options)

    def chat(self, *arguments, **options):
        self.threads.append(threading.current_thread())
        return super().chat(*arguments, **options)

    def bad_words(self, words):
        self.threads.append(threading.current_thread())
        return super().bad_words(words)


class Target:
    """Describes itself; what would be generated is kept."""

    def __init__(self) -> None:
        self.requests = []

    async def describe_all(self):
        return [SimpleNamespace(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)]

    async def merged(self, requests):
        self.requests.extend(requests)
        for nothing in ():
            yield nothing

    async def stream(self, request):
        self.requests.append(request)
        for nothing in ():
            yield nothing


KEYS_VARIABLE = "SPECDEC_TEST_KEYS"
KEYS = """
- {key: key, tenant: tenant}
- {key: key-operator, tenant: operations, operator: true}
"""


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, KEYS)


def make_service(tokenizer, **gateway) -> GatewayService:
    settings = AppSettings.model_validate(
        {
            "target": {"target": {"model": "tiny"}, "speculation": {"drafters": []}},
            "gateway": {"api_keys_env": KEYS_VARIABLE, **gateway},
        }
    )
    return GatewayService(settings, Target(), Watched(tokenizer))


@pytest.fixture
def service(tiny_tokenizer):
    return make_service(tiny_tokenizer)


class Post:
    """As much of a Starlette request as the handlers read."""

    def __init__(self, body, key="key", **headers) -> None:
        self.headers = {"authorization": f"Bearer {key}", **headers}
        self._body = json.dumps(body).encode()

    async def stream(self):
        yield self._body


async def post(service, path, body, key="key", **headers):
    handlers = HttpHandlers(service)
    return await getattr(handlers, path)(Post(body, key, **headers))


# The endpoints are the gateway's methods of this prefix.
ENDPOINTS = sorted(name for name in vars(Gateway) | vars(Gateway.__mro__[1]) if name[:5] == "http_")
# What tells nothing of anybody; probes ask the first one.
OPEN = {"http_health", "http_version"}
OPERATORS = {"http_live", "http_metrics"}


def call_endpoint(service, name, key):
    """As the route does, with a request whose body nobody may read."""

    async def unread():
        raise AssertionError("the body was read")

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    arguments = {"name": "tiny"} if name == "http_model" else {}
    gateway = SimpleNamespace(_http=HttpHandlers(service))
    return getattr(Gateway, name)(gateway, Request(scope, unread), **arguments)


def test_the_endpoints_are_all_that_is_routed():
    assert len(ENDPOINTS) == sum(map(len, http_app.openapi()["paths"].values()))
    assert set(ENDPOINTS) > OPEN | OPERATORS
    assert (http_app.docs_url, http_app.redoc_url) == (None, None), "scripts from another host"


@pytest.mark.parametrize("key", [None, "wrong"])
@pytest.mark.parametrize("name", [name for name in ENDPOINTS if name not in OPEN])
async def test_every_endpoint_asks_for_the_key_before_it_reads_a_body(service, name, key):
    with pytest.raises(UnauthenticatedError):
        await call_endpoint(service, name, key)


@pytest.mark.parametrize("name", sorted(OPERATORS))
async def test_what_tells_of_all_tenants_is_for_operators(service, name):
    with pytest.raises(ForbiddenError):
        await call_endpoint(service, name, "key")


class Untouchable:
    """A message that nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was read")


@pytest.mark.parametrize("method", [m.name for m in SERVICE.methods])
async def test_every_grpc_method_asks_for_the_key_first(service, method):
    name = re.sub("(?<!^)(?=[A-Z])", "_", method).lower()
    context = Context("wrong")
    answer = getattr(GrpcHandlers(service), name)(Untouchable(), context)
    if hasattr(answer, "__aiter__"):
        [_ async for _ in answer]
    else:
        await answer
    assert context.code == grpc.StatusCode.UNAUTHENTICATED


BODIES = {
    "completions": {"prompt": "the cat"},
    "chat": {"messages": MESSAGES},
    "tokenize": {"prompt": "the cat"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("change", "key", "error"),
    [({}, "wrong", UnauthenticatedError), ({"model": "other"}, "key", ModelNotFoundError)],
    ids=["key", "model"],
)
async def test_http_touches_no_text_of_a_stranger_or_for_another_model(
    service, path, change, key, error
):
    with pytest.raises(error):
        await post(service, path, {**BODIES[path], "bad_words": ["a"], **change}, key)
    assert service.prompter.threads == []


class Context:
    """As much of Serve's gRPC context as the handlers use."""

    def __init__(self, key="key") -> None:
        self.key, self.code = key, None

    def invocation_metadata(self):
        return [("authorization", f"Bearer {self.key}")]

    def set_code(self, code) -> None:
        self.code = code

    def set_details(self, details) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata) -> None:
        self.trailing = metadata


async def generate(service, wire, key="key"):
    """The status and the in-band error of a call that fails."""
    context = Context(key)
    messages = [m async for m in GrpcHandlers(service).generate(wire, context)]
    return context.code, messages[-1].error if messages else None


CHAT = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")])


@pytest.mark.parametrize("prompt", [{"text": "the cat"}, {"chat": CHAT}], ids=["text", "chat"])
async def test_grpc_touches_no_text_of_a_stranger_or_for_another_model(service, prompt):
    code, _ = await generate(service, pb.GenerateRequest(**prompt), key="wrong")
    assert code == grpc.StatusCode.UNAUTHENTICATED
    code, _ = await generate(service, pb.GenerateRequest(model="other", **prompt))
    assert code == grpc.StatusCode.NOT_FOUND
    assert service.prompter.threads == []


async def test_a_template_of_the_client_needs_leave(service, tiny_tokenizer):
    body = {"messages": MESSAGES, "chat_template": "{{ messages[0].content }}", "max_tokens": 1}
    with pytest.raises(InvalidRequestError) as error:
        await post(service, "chat", body)
    assert error.value.field == "chat_template"
    assert service.prompter.threads == []

    allowing = make_service(tiny_tokenizer, allow_client_chat_template=True)
    await post(allowing, "chat", body)
    assert allowing.target.requests[0].prompt_token_ids == tiny_tokenizer.encode("hi")


@pytest.mark.parametrize("path", ["completions", "chat", "tokenize"])
async def test_text_that_cannot_fit_is_refused_by_its_length(service, path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("tokenised")

    monkeypatch.setattr(type(service.prompter.tokenizer), "encode", never)
    text = "x" * (MAX_MODEL_LEN * service.prompter.max_token_chars + 1)
    body, field = {"prompt": text}, "prompt"
    if path == "chat":
        body, field = {"messages": [{"role": "user", "content": text}]}, "messages"
    with pytest.raises(InvalidRequestError, match="cannot fit 8 tokens") as error:
        await post(service, path, body)
    assert error.value.field == field
    code, in_band = await generate(service, pb.GenerateRequest(text=text))
    assert (code, in_band.field) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")


async def test_truncation_keeps_the_end_of_any_text(service, tiny_tokenizer):
    end = " and the dog"
    text = "x" * 10_000 + end
    await post(service, "completions", {"prompt": text, "truncate_prompt_tokens": 2})
    expected = tiny_tokenizer.encode(text)[-2:]
    assert service.target.requests[0].prompt_token_ids == expected
    assert len(tiny_tokenizer.encode(end)) >= 2, "the end decides"


async def test_no_token_is_longer_than_its_bound(service, tiny_tokenizer):
    texts = [tiny_tokenizer.decode([token_id]) for token_id in range(len(tiny_tokenizer))]
    assert max(map(len, texts)) == service.prompter.max_token_chars


async def test_text_is_never_worked_on_in_the_event_loop(service):
    extras = {"bad_words": ["a"], "max_tokens": 1}
    await post(service, "completions", {"prompt": "a", **extras})
    await post(service, "tokenize", {"prompt": "a"})
    with pytest.raises(InvalidRequestError):  # the formatted text does not fit
        await post(service, "chat", {"messages": MESSAGES, **extras})
    await generate(service, pb.GenerateRequest(text="a", bad_words=["a"]))
    assert len(service.prompter.threads) >= 8
    assert threading.current_thread() not in service.prompter.threads


async def test_too_many_prompts_are_refused_before_the_first_is_tokenised(service):
    with pytest.raises(InvalidRequestError) as error:
        await post(service, "completions", {"prompt": ["a"] * 100, "n": 2})
    assert error.value.field == "n"
    assert service.prompter.threads == []


@pytest.mark.parametrize("words", [["a"] * 1001, ["x" * 100_000]], ids=["many", "long"])
def test_bad_words_are_bounded(service, words):
    with pytest.raises(InvalidRequestError) as error:
        service.prompter.bad_words(words)
    assert error.value.field == "bad_words"


BAD_IDS = [
    *("x" * 129, "two\nlines", "cr\r", "tab\t", "ü", "\x7f", "\u2028", "\x1b[2K", "x outcome=ok"),
    *('"', "{}", "a,b", " "),
]


@pytest.mark.parametrize("given", BAD_IDS, ids=ascii)
async def test_a_request_id_ends_no_field_and_no_line_of_a_log(service, given):
    for body, headers in (({"request_id": given}, {}), ({}, {"x-request-id": given})):
        with pytest.raises(InvalidRequestError) as error:
            await post(service, "completions", {"prompt": "a", **body}, **headers)
        assert error.value.field == "request_id"
    code, in_band = await generate(service, pb.GenerateRequest(text="a", request_id=given))
    assert (code, in_band.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request_id")


async def test_a_request_id_of_128_characters_is_kept(service):
    await post(service, "completions", {"prompt": "a", "request_id": "x" * 128})
    assert service.target.requests[0].request_id == "cmpl-" + "x" * 128


async def test_the_tokenizer_is_hashed_once(service, monkeypatch):
    digests = []

    def counted(tokenizer):
        digests.append(tokenizer)
        return "digest"

    monkeypatch.setattr("deployments.prompts.tokenizer_hash", counted)
    limits = {"max_model_len": 8, "vocab_size": 9, "drafters": (), "max_num_speculative_tokens": 0}
    monkeypatch.setattr(service, "_description", SimpleNamespace(**limits))
    handlers = GrpcHandlers(service)
    answers = [handlers.get_model(pb.GetModelRequest(), Context()) for _ in range(5)]
    assert {answer.tokenizer_hash for answer in await asyncio.gather(*answers)} == {"digest"}
    assert len(digests) == 1


async def test_the_whole_id_of_a_response_can_be_asked_for(service, monkeypatch):
    async def nothing(*_):
        return []

    service.target.explain = nothing
    for given in ("cmpl-" + "x" * 128, "chatcmpl-" + "x" * 128 + "-127"):
        with pytest.raises(RequestNotFoundError):
            await service.explain(Caller("tenant"), given)
    for given in ("x" * 161, "", "a b"):
        with pytest.raises(InvalidRequestError):
            await service.explain(Caller("tenant"), given)


def completion(**fields) -> CompletionBody:
    raw = json.dumps({"prompt": "a", **fields}).encode()
    return parse(CompletionBody, raw, max_bytes=2**20)


@pytest.mark.parametrize(
    "key", ["", " 5", "5 ", "+5", "-5", "1_0", "05", "٣", "5.0", "9" * 5000], ids=lambda k: k[:9]
)
def test_a_logit_bias_key_is_written_one_way_only(service, key):
    with pytest.raises(InvalidRequestError) as error:
        completion(logit_bias={key: 1}).sampling_params(service.prompter, 1, None, None)
    assert error.value.field == "logit_bias"
    assert len(error.value.message) < 200


@pytest.mark.parametrize(
    "raw", ["true", '"1"', "[1]", "1e999", "-1e999", "1" + "0" * 400, "9" * 4000], ids=len
)
def test_a_bias_is_a_finite_number(raw):
    with pytest.raises(InvalidRequestError) as error:
        parse(CompletionBody, f'{{"prompt":"a","logit_bias":{{"5":{raw}}}}}'.encode(), 2**20)
    assert error.value.field in ("logit_bias", "body")
    assert len(error.value.message) < 300


def test_a_whole_bias_is_a_float():
    (bias,) = completion(logit_bias={"5": 2}).logit_bias.values()
    assert (bias, type(bias)) == (2.0, float)


def test_ids_that_are_given_twice_count_once(service):
    body = completion(
        logit_bias={"0": 1, "10": 2}, stop_token_ids=[7, 3, 7], allowed_token_ids=[2, 1, 1]
    )
    params = body.sampling_params(service.prompter, 1, None, None)
    assert params.stop_token_ids == (3, 7)
    assert params.allowed_token_ids == (1, 2)
    assert params.logit_bias == {0: 1, 10: 2}


HUGE = "x" * 500_000


@pytest.mark.parametrize(
    "change",
    [
        {"model": HUGE},
        {"logit_bias": {HUGE: "much"}},
        {"speculation": {HUGE: 1}},
        {"speculation": {"mode": HUGE}},
        {"speculation": {"drafter": HUGE}},
        {"response_format": {"type": HUGE}},
        {"temperature": HUGE},
        {"request_id": HUGE},
    ],
    ids=lambda change: str(change)[:30],
)
async def test_errors_repeat_little_of_what_was_sent(service, change):
    with pytest.raises(SpecdecError) as error:
        await post(service, "completions", {"prompt": "a", **change})
    assert len(error.value.message) < 400
    assert len(error.value.field or "") < 120


async def test_log_probabilities_of_all_completions_count_together(tiny_tokenizer):
    """4 prompt tokens and 4 to come, 1 + 1 and 1 + 2 log-probabilities each, 3 times."""
    num_bytes = 3 * (4 * 2 + 4 * 3) * BYTES_PER_LOGPROB
    params = SamplingParams(max_tokens=100, logprobs=2, prompt_logprobs=1)
    for limit, is_allowed in ((num_bytes, True), (num_bytes - 1, False)):
        service = make_service(tiny_tokenizer)
        service.max_logprobs_bytes = limit
        wanted = service.requests([[1, 2, 3, 4]], params, "", "id", n=3)
        if is_allowed:
            assert all(request.is_checked for request in await wanted)
            continue
        with pytest.raises(InvalidRequestError) as error:
            await wanted
        assert error.value.field == "logprobs"


def test_the_bound_on_log_probabilities_is_the_operators(tiny_tokenizer):
    scheduler = {"max_logprobs_bytes": 12345}
    settings = AppSettings.model_validate(
        {"target": {"target": {"model": "m"}, "scheduler": scheduler}}
    )
    assert GatewayService(settings, Target(), Watched(tiny_tokenizer)).max_logprobs_bytes == 12345
