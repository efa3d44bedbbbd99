"""`specdec generate --address`: the same output as in-process, from a server over gRPC."""

from __future__ import annotations

import socket

import grpc
import pytest
from scripted_inference import scripted_server

from specdec.v1 import inference_pb2, sampling_pb2

WORDS = {11: "one", 12: " two", 13: " three", 14: " four", 99: " ninety"}


@pytest.fixture
def server():
    with scripted_server() as running:
        running.replies["GetModel"] = lambda request, context: inference_pb2.GetModelResponse(
            model="served"
        )
        running.replies["Tokenize"] = lambda request, context: inference_pb2.TokenizeResponse(
            token_ids=[11]
        )
        running.replies["Detokenize"] = lambda request, context: inference_pb2.DetokenizeResponse(
            text="".join(WORDS[token_id] for token_id in request.token_ids)
        )
        yield running


def generated(server) -> inference_pb2.GenerateRequest:
    """The one Generate request that the server saw."""
    (request,) = (r for r in server.requests if isinstance(r, inference_pb2.GenerateRequest))
    return request


def test_json_has_the_same_shape_as_in_process(specdec, server, models):
    remote = specdec.json("generate", "hi", "--address", server.address)
    local = specdec.json("generate", "the cat", "--max-tokens", 4, *models)
    assert remote.keys() == local.keys()
    assert remote["speculation"].keys() == local["speculation"].keys()
    assert remote["model"] == "served"
    assert remote["token_ids"] == [11, 12, 13, 14]
    assert remote["text"] == "one two three four"
    assert (remote["finish_reason"], remote["stop_reason"]) == ("stop", "END")
    assert remote["num_prompt_tokens"] == 5
    assert remote["speculation"]["acceptance_rate"] == pytest.approx(2 / 3)


def test_options_travel(specdec, server):
    specdec(
        "generate", "hi", "--address", server.address, "--max-tokens", 9, "--temperature", 0.8,
        "--seed", 7, "--top-p", 0.9, "--top-k", 5, "--min-p", 0.1, "--stop", "A", "--stop", "B",
        "--speculation", "fixed", "--k", 4, "--drafter", "draft", "--verification", "block",
        "--api-key", "secret", "--timeout", 30,
    )  # fmt: skip
    request = generated(server)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (9, 0.8, 7)
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.9, 5, 0.1)
    assert list(sampling.stop) == ["A", "B"]
    assert request.speculation.mode == sampling_pb2.SPECULATION_MODE_FIXED
    assert (request.speculation.k, request.speculation.drafter) == (4, "draft")
    assert request.speculation.verification == sampling_pb2.VERIFICATION_BLOCK
    assert request.timeout.seconds == 30
    assert server.metadata[-1]["authorization"] == "Bearer secret"


def test_show_prints_drafted_tokens_too(specdec, server):
    result = specdec("generate", "hi", "--address", server.address, "--show")
    # Accepted "one two", rejected "ninety", recovered "three"; then a step without a draft.
    assert result.stdout.split() == ["one", "two", "ninety", "three", "four"]
    assert "accepted rejected bonus" in result.stderr
    assert "3 drafted by ngram, 2 accepted (67%)" in result.stderr


def test_chat_is_sent_as_a_conversation(specdec, server):
    specdec("generate", "hi", "--chat", "--address", server.address)
    (message,) = generated(server).chat.messages
    assert (message.role, message.content) == ("user", "hi")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 2),
        (grpc.StatusCode.UNAUTHENTICATED, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 3),
        (grpc.StatusCode.UNAVAILABLE, 3),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 3),
        (grpc.StatusCode.INTERNAL, 1),
    ],
)
def test_exit_status_says_whose_fault_it_was(specdec, server, status, code):
    def fail(request, context):
        context.abort(status, "because [of this]")
        yield

    server.replies["Generate"] = fail
    result = specdec("generate", "hi", "--address", server.address, code=code)
    assert result.stderr.strip() == "error: because [of this]"


def test_no_server_is_exit_status_3(specdec):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        specdec("generate", "hi", "--address", address, code=3)
