"""The draft's server alone, spoken to by hand: greetings, streams, health, reflection."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specdec.errors import UnavailableError
from specdec.rpc import convert
from specdec.rpc.draft_server import SERVICE, DraftServer
from specdec.speculation.messages import Heartbeat, Hello
from specdec.v1 import draft_pb2, draft_pb2_grpc
from tests.integration.rpc.servers import PATIENCE_S, credentials_of
from tests.unit.rpc.scripted_draft import TARGET_ID, VOCAB, ScriptedDraft, wait_until


def hello(
    connection: int = 1, incarnation: int = 1, version: int = 1, vocab_size: int = VOCAB
) -> draft_pb2.Hello:
    return convert.hello_to_wire(
        Hello(TARGET_ID, incarnation, connection, version, "m", vocab_size)
    )


async def test_a_newer_connection_replaces_an_older_one(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        old, new, late = (stub.Speculate(metadata=credentials_of()) for _ in range(3))
        async with asyncio.timeout(PATIENCE_S):
            await old.write(draft_pb2.SpeculateRequest(hello=hello(1)))
            assert (await old.read()).welcome.incarnation == 1
            await new.write(draft_pb2.SpeculateRequest(hello=hello(2)))
            assert (await new.read()).welcome.incarnation == 1
            assert await old.read() is grpc.aio.EOF
            await late.write(draft_pb2.SpeculateRequest(hello=hello(1)))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await late.read()
            assert refused.value.code() == grpc.StatusCode.ABORTED
        assert len(server.draft.hellos) == 2
        assert server.draft.dropped == [f"{TARGET_ID}/1/1"]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (draft_pb2.SpeculateRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        (
            draft_pb2.SpeculateRequest(hello=hello(version=2)),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (
            draft_pb2.SpeculateRequest(hello=hello(vocab_size=0)),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_bad_hello_is_refused(serve, first, code) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(metadata=credentials_of())
        async with asyncio.timeout(PATIENCE_S):
            await call.write(first)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
        assert refused.value.code() == code
        assert server.draft.hellos == {}


async def test_the_end_of_a_stream_is_an_abort(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(metadata=credentials_of())
        async with asyncio.timeout(PATIENCE_S):
            await call.write(draft_pb2.SpeculateRequest(hello=hello()))
            await call.read()
            beat = draft_pb2.Heartbeat(sequence_number=9, sent_ns=77)
            await call.write(draft_pb2.SpeculateRequest(heartbeat=beat))
            echo = convert.heartbeat_from_wire((await call.read()).heartbeat)
            assert echo == Heartbeat(9, 77, num_free_blocks=42, idle_fraction=0.5)
        call.cancel()
        wait_until(lambda: server.draft.dropped == [f"{TARGET_ID}/1/1"])


async def test_health_and_reflection(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            answer = await health.Check(
                health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S
            )
            assert answer.status == status.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = [
            r async for r in reflection.ServerReflectionInfo(iter([request]), timeout=PATIENCE_S)
        ]
        assert SERVICE in [s.name for s in listed[0].list_services_response.service]
        server.drain()
        answer = await health.Check(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE_S
        )
        assert answer.status == status.NOT_SERVING
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(
            timeout=PATIENCE_S, metadata=credentials_of()
        )
        await call.write(draft_pb2.SpeculateRequest(hello=hello()))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_taken_port_is_an_error(serve) -> None:
    server = serve()
    with pytest.raises(UnavailableError, match=str(server.port)):
        await DraftServer(ScriptedDraft()).start(f"127.0.0.1:{server.port}")
