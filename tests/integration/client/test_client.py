"""The blocking client against a scripted server: what it sends, what it returns, how it fails."""

from __future__ import annotations

import socket
import threading

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from scripted_inference import scripted_server

from specdec import Client
from specdec.client import Completion, TokenLogprob
from specdec.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    SpecdecError,
    UnauthenticatedError,
    UnavailableError,
)
from specdec.v1 import inference_pb2, sampling_pb2

EVERY_OPTION = {
    "model": "m",
    "max_tokens": 7,
    "temperature": 0.5,
    "top_k": -1,
    "top_p": 0.9,
    "min_p": 0.05,
    "seed": -5,
    "logit_bias": {3: -2.5, 4: 1.0},
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.3,
    "min_tokens": 2,
    "bad_words": ["rude"],
    "bad_words_token_ids": [[1, 2], [3]],
    "allowed_token_ids": [5, 6],
    "stop": "END",
    "stop_token_ids": [9],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logprobs": 0,
    "prompt_logprobs": 2,
    "speculation": {"mode": "fixed", "k": 4, "drafter": "ngram", "verification": "block"},
    "cache_salt": "salt",
    "request_id": "mine",
}


@pytest.fixture
def server():
    with scripted_server() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.address) as connected:
        yield connected


def test_stream_carries_tokens_drafts_and_the_summary_at_the_end(client):
    first, last = client.generate("hello")
    assert first.token_ids == (11, 12, 13)
    assert first.draft_token_ids == (11, 12, 99)
    assert first.num_accepted_tokens == 2
    assert first.finish_reason is None
    assert first.usage is None
    assert last.text == " four"
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")
    assert (last.usage.num_prompt_tokens, last.usage.num_output_tokens) == (5, 4)
    assert (last.speculation.drafter, last.speculation.verification) == ("ngram", "coupled")
    assert last.speculation.mode == "auto"
    assert last.speculation.clipped_k is None
    assert last.timing.total_s == 1.5


def test_every_option_arrives(server, client):
    list(client.generate("hello", **EVERY_OPTION))
    (request,) = server.requests
    sampling = request.sampling
    assert request.text == "hello"
    assert (request.model, request.cache_salt, request.request_id) == ("m", "salt", "mine")
    assert list(request.bad_words) == ["rude"]
    for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "min_tokens"):
        assert getattr(sampling, name) == EVERY_OPTION[name]
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos"):
        assert getattr(sampling, name) == EVERY_OPTION[name]
    assert sampling.include_stop_str_in_output
    assert sampling.HasField("skip_special_tokens")
    assert not sampling.skip_special_tokens
    assert sampling.HasField("logprobs")
    assert (sampling.logprobs, sampling.prompt_logprobs) == (0, 2)
    assert dict(sampling.logit_bias) == {3: -2.5, 4: 1.0}
    assert [list(word.token_ids) for word in sampling.bad_words_token_ids] == [[1, 2], [3]]
    assert list(sampling.allowed_token_ids.token_ids) == [5, 6]
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["END"], [9])
    assert request.speculation.mode == sampling_pb2.SPECULATION_MODE_FIXED
    assert request.speculation.verification == sampling_pb2.VERIFICATION_BLOCK
    assert (request.speculation.k, request.speculation.drafter) == (4, "ngram")
    assert not request.speculation.HasField("max_k")


def test_options_left_out_stay_absent_so_that_the_server_decides(server, client):
    list(client.generate("hello", temperature=None))
    (request,) = server.requests
    assert request.sampling == sampling_pb2.SamplingParams()
    assert not request.HasField("speculation")


def test_prompts_may_be_token_ids_or_a_conversation(server, client):
    list(client.generate([1, 2, 3]))
    list(client.generate([{"role": "user", "content": "hi"}]))
    ids, chat = server.requests
    assert list(ids.token_ids.token_ids) == [1, 2, 3]
    assert [(m.role, m.content) for m in chat.chat.messages] == [("user", "hi")]


def test_empty_prompt_is_sent_as_an_empty_list_for_the_server_to_refuse(server, client):
    list(client.generate([]))
    assert server.requests[0].WhichOneof("prompt") == "token_ids"


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("x", {"max_tokens": -1}, "max_tokens"),
        ("x", {"max_tokens": 1.5}, "max_tokens"),
        ("x", {"temperature": "hot"}, "temperature"),
        ("x", {"seed": 2**63}, "seed"),
        ("x", {"stop": [7]}, "stop"),
        ("x", {"logit_bias": {-1: 0.0}}, "logit_bias"),
        ("x", {"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ("x", {"speculation": {"mode": "always"}}, "speculation.mode"),
        ("x", {"speculation": {"depth": 4}}, "speculation.depth"),
        ("x", {"speculation": {"mode": "fixed"}}, "speculation.k"),
        ("x", {"timeout_s": 0}, "timeout_s"),
        ("x", {"timeout_s": float("nan")}, "timeout_s"),
        ([-1], {}, "prompt"),
        ([{"role": "user"}], {}, "messages[0]"),
        ([{"role": "user", "content": None}], {}, "messages[0].content"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name_before_sending(
    server, client, prompt, options, field
):
    with pytest.raises(InvalidRequestError) as caught:
        list(client.generate(prompt, **options))
    assert caught.value.field == field
    assert server.requests == []


def test_unknown_keyword_is_a_type_error(client):
    with pytest.raises(TypeError, match="temprature"):
        list(client.generate("x", temprature=0.5))


def rich_abort(code, *details):
    def abort(request, context):
        status = status_pb2.Status(code=code, message="no good")
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        context.abort_with_status(rpc_status.to_status(status))

    return abort


def plain_abort(code):
    return lambda request, context: context.abort(code, "no good")


def test_rich_error_names_field_and_reason(server, client):
    violation = error_details_pb2.BadRequest.FieldViolation(field="top_p", description="too big")
    server.replies["Complete"] = rich_abort(
        code_pb2.INVALID_ARGUMENT,
        error_details_pb2.ErrorInfo(reason="TOP_P", domain="specdec", metadata={"a": "b"}),
        error_details_pb2.BadRequest(field_violations=[violation]),
    )
    with pytest.raises(InvalidRequestError, match="no good") as caught:
        client.complete("x")
    assert (caught.value.field, caught.value.reason) == ("top_p", "TOP_P")


def test_rich_error_says_when_to_come_back(server, client):
    delay = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000))
    server.replies["Complete"] = rich_abort(code_pb2.RESOURCE_EXHAUSTED, delay)
    with pytest.raises(OverloadedError) as caught:
        client.complete("x")
    assert caught.value.retry_after_s == 2.5


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.NOT_FOUND, ModelNotFoundError),
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OverloadedError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.INTERNAL, SpecdecError),
    ],
)
def test_plain_status_becomes_the_same_exceptions(server, client, code, kind):
    server.replies["GetModel"] = plain_abort(code)
    with pytest.raises(kind, match="no good") as caught:
        client.get_model()
    assert type(caught.value) is kind


def test_details_that_do_not_parse_leave_code_and_message(server, client):
    def abort(request, context):
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no good")

    server.replies["GetModel"] = abort
    with pytest.raises(InvalidRequestError, match="no good") as caught:
        client.get_model()
    assert caught.value.field is None


def test_error_in_the_stream_is_raised_after_what_came_before(server, client):
    def fail_midway(request, context):
        yield inference_pb2.GenerateResponse(token_ids=[1], text="a")
        last = inference_pb2.GenerateResponse(finish_reason=inference_pb2.FINISH_REASON_ERROR)
        last.error.code = code_pb2.RESOURCE_EXHAUSTED
        last.error.reason = "QUEUE_FULL"
        last.error.message = "come back later"
        last.error.retry_after.seconds = 3
        yield last

    server.replies["Generate"] = fail_midway
    stream = client.generate("x")
    assert next(stream).text == "a"
    with pytest.raises(OverloadedError, match="come back later") as caught:
        next(stream)
    assert caught.value.retry_after_s == 3


def test_stream_that_ends_too_early_is_an_error(server, client):
    server.replies["Generate"] = lambda request, context: iter(
        [inference_pb2.GenerateResponse(token_ids=[1], text="a")]
    )
    with pytest.raises(SpecdecError, match="before the generation was finished"):
        list(client.generate("x"))


def hang(request, context):
    threading.Event().wait(10)
    yield inference_pb2.GenerateResponse()


def test_deadline_ends_a_call_to_a_server_that_hangs(server, client):
    server.replies["Generate"] = hang
    with pytest.raises(DeadlineError):
        list(client.generate("x", timeout_s=0.3))


def test_timeout_is_both_the_calls_and_the_requests(server, client):
    list(client.generate("x", timeout_s=12.5))
    assert server.requests[0].timeout.ToNanoseconds() == 12_500_000_000
    assert 5 < server.time_remaining[0] <= 12.5


def test_closing_the_iterator_cancels_on_the_server(server, client):
    def endless(request, context):
        while context.is_active():
            yield inference_pb2.GenerateResponse(token_ids=[1], text="a")

    server.replies["Generate"] = endless
    stream = client.generate("x")
    next(stream)
    assert not server.cancelled.is_set()
    stream.close()
    assert server.cancelled.wait(30)


def test_api_key_travels_as_a_bearer_token_and_may_differ_per_call(server):
    with Client(server.address, api_key="k1", application="app") as client:
        list(client.generate("x"))
        list(client.generate("x", api_key="k2"))
    first, second = server.metadata
    assert first["authorization"] == "Bearer k1"
    assert first["application"] == "app"
    assert second["authorization"] == "Bearer k2"


def test_no_server_is_unavailable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Client(address) as client:
            with pytest.raises(UnavailableError):
                client.get_model(timeout_s=5)
            with pytest.raises(UnavailableError, match=address):
                client.wait_until_connected(timeout_s=0.2)


def test_complete_and_its_spelling_as_generate(server, client):
    def reply(request, context):
        message = inference_pb2.CompleteResponse(
            request_id="r", token_ids=[1, 2], text="ab", finish_reason=2, stop_token_id=2
        )
        position = message.logprobs.add(rank=1)
        position.token.token_id, position.token.logprob = 1, -0.5
        position.top.add(token_id=1, logprob=-0.5)
        message.prompt_logprobs.add()
        message.speculation.clipped_k = 4
        message.speculation.mode = sampling_pb2.SPECULATION_MODE_FIXED
        return message

    server.replies["Complete"] = reply
    whole = client.complete("x", max_tokens=2)
    assert isinstance(whole, Completion)
    assert whole == client.generate("x", max_tokens=2, stream=False)
    assert (whole.token_ids, whole.text) == ((1, 2), "ab")
    assert (whole.finish_reason, whole.stop_reason) == ("length", 2)
    assert whole.logprobs[0].token == TokenLogprob(1, -0.5)
    assert whole.logprobs[0].top == (TokenLogprob(1, -0.5),)
    assert whole.prompt_logprobs[0].token is None
    assert (whole.speculation.mode, whole.speculation.clipped_k) == ("fixed", 4)
    assert server.requests[0].request.sampling.max_tokens == 2


def test_model_and_tokens(server, client):
    server.replies["GetModel"] = lambda request, context: inference_pb2.GetModelResponse(
        model=request.model or "served", vocab_size=10, max_model_len=20, drafters=["draft"]
    )
    server.replies["Tokenize"] = lambda request, context: inference_pb2.TokenizeResponse(
        token_ids=[1, 2]
    )
    server.replies["Detokenize"] = lambda request, context: inference_pb2.DetokenizeResponse(
        text="".join(chr(96 + token_id) for token_id in request.token_ids)
    )
    assert client.get_model().name == "served"
    assert client.get_model("other").name == "other"
    assert client.get_model().drafters == ("draft",)
    assert client.tokenize("ab", add_special_tokens=False) == [1, 2]
    assert client.tokenize([{"role": "user", "content": "ab"}]) == [1, 2]
    assert client.detokenize([1, 2], skip_special_tokens=True) == "ab"
    text, chat = (r for r in server.requests if isinstance(r, inference_pb2.TokenizeRequest))
    assert text.HasField("add_special_tokens")
    assert not text.add_special_tokens
    assert chat.chat.messages[0].content == "ab"
    assert server.requests[-1].skip_special_tokens


def test_unknown_finish_reason_of_a_newer_server_still_ends_the_stream(server, client):
    server.replies["Generate"] = lambda request, context: iter(
        [inference_pb2.GenerateResponse(finish_reason=99)]
    )
    (last,) = client.generate("x")
    assert last.finish_reason == "unknown"
