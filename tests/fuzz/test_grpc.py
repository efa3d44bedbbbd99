"""Messages that nobody meant, to the handlers of the public gRPC service.

Every call ends with a status that the documents name, never INTERNAL or UNKNOWN, and a refusal of
an argument names the field.
"""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from deployments.grpc_handlers import GrpcHandlers
from specdec.engine.async_engine import AsyncEngine
from specdec.v1 import inference_pb2 as pb
from tests.fuzz.front_door import KEY, MODEL, gateway_service
from tests.fuzz.rounds import fuzz_async
from tests.fuzz.wire import message
from tests.unit.engine.engine_harness import make_engine

ANSWER_TIMEOUT_S = 60.0
DOCUMENTED = {
    None,
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
CALLS = {
    "complete": pb.CompleteRequest,
    "generate": pb.GenerateRequest,
    "get_model": pb.GetModelRequest,
    "tokenize": pb.TokenizeRequest,
    "detokenize": pb.DetokenizeRequest,
    "explain": pb.ExplainRequest,
}


class Context:
    """As much of Serve's gRPC context as the handlers use."""

    def __init__(self, rng: random.Random) -> None:
        key = KEY if rng.random() < 0.95 else "wrong"
        self._metadata = [("authorization", f"Bearer {key}")]
        self.code, self.details, self.trailing = None, "", []

    def invocation_metadata(self):
        return self._metadata

    def set_code(self, code) -> None:
        self.code = code

    def set_details(self, details) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata) -> None:
        self.trailing = metadata


@pytest.fixture(scope="module")
def engine(tiny_llama):
    built = AsyncEngine(make_engine(tiny_llama, max_model_len=64, max_num_sequences=4))
    yield built
    built.shutdown()


def generate_request(rng: random.Random) -> pb.GenerateRequest:
    """Mostly sound around a few random parts, or nothing would get past the first check."""
    wire = message(rng, pb.GenerateRequest)
    if rng.random() < 0.7:
        wire.model = MODEL
        wire.request_id = "r"
        wire.text = "the cat"
        wire.ClearField("bad_words")
        wire.ClearField("timeout")
        wire.sampling.max_tokens = rng.randint(1, 5)
    if rng.random() < 0.5:
        wire.ClearField("sampling")
    if rng.random() < 0.7:
        wire.ClearField("speculation")
    return wire


def request(rng: random.Random, name: str):
    if name == "generate":
        return generate_request(rng)
    if name == "complete":
        return pb.CompleteRequest(request=generate_request(rng))
    wire = message(rng, CALLS[name])
    if hasattr(wire, "model") and rng.random() < 0.8:
        wire.model = MODEL
    return wire


def check(context: Context) -> None:
    assert context.code in DOCUMENTED, (context.code, context.details)
    assert len(context.details) < 1200
    if context.code is not grpc.StatusCode.INVALID_ARGUMENT:
        return
    rich = status_pb2.Status.FromString(dict(context.trailing)["grpc-status-details-bin"])
    violation = error_details_pb2.BadRequest()
    assert any(detail.Unpack(violation) for detail in rich.details), rich
    assert violation.field_violations[0].field


async def test_whatever_is_called_ends_with_a_documented_status(
    engine, tiny_tokenizer, monkeypatch
):
    handlers = GrpcHandlers(gateway_service(engine, tiny_tokenizer, monkeypatch))
    seen: set[object] = set()

    async def one_round(rng: random.Random) -> None:
        name = rng.choice(sorted(CALLS))
        context, wire = Context(rng), request(rng, name)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            if name == "generate":
                async for _ in handlers.generate(wire, context):
                    pass
            else:
                await getattr(handlers, name)(wire, context)
        check(context)
        seen.add(context.code)

    await fuzz_async(one_round, 400)
    assert {None, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED} <= seen
    assert not engine.engine.has_work
