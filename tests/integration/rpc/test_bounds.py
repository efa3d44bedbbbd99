"""What one peer may send the other, at the wire: beyond it the connection ends, and only that."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from specdec.rpc import convert
from specdec.rpc.draft_member import BURST
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.transport import MAX_MESSAGE_BYTES
from specdec.speculation.messages import Hello, Open, Proposal
from specdec.v1 import draft_pb2, draft_pb2_grpc
from tests.integration.rpc.servers import PATIENCE_S, PROMPT, TOKENS, credentials_of
from tests.unit.rpc.scripted_draft import (
    TARGET_ID,
    VOCAB,
    Decoding,
    ScriptedDraft,
    identity,
    wait_until,
)


def hello(target_id: str) -> draft_pb2.Hello:
    return convert.hello_to_wire(Hello(target_id, 1, 1, 1, "m", VOCAB))


async def greeted(stub, target_id: str, stream: str = "Speculate"):
    request = {"Speculate": draft_pb2.SpeculateRequest, "Sync": draft_pb2.SyncRequest}[stream]
    call = getattr(stub, stream)(timeout=PATIENCE_S, metadata=credentials_of(target_id))
    await call.write(request(hello=hello(target_id)))
    await call.read()
    return call


FLOODS = [
    pytest.param(
        draft_pb2.SpeculateRequest(
            commits=[draft_pb2.Commit(session_id=1)] * (convert.MAX_RECORDS + 1)
        ),
        id="many records",
    ),
    pytest.param(
        draft_pb2.SpeculateRequest(
            commits=[draft_pb2.Commit(token_ids=[0] * (convert.MAX_TOKENS + 1))]
        ),
        id="many tokens",
    ),
    pytest.param(
        draft_pb2.SpeculateRequest(
            commits=[draft_pb2.Commit(token_ids=[2**32 - 1] * (MAX_MESSAGE_BYTES // 5 + 1))]
        ),
        id="many bytes",
    ),
]


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_message_beyond_the_bounds_ends_its_senders_stream_alone(
    serve, connect, flood
) -> None:
    server = serve()
    honest = Decoding(connect(server.member), 1, PROMPT)
    await asyncio.to_thread(honest.until_available)
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        call = await greeted(draft_pb2_grpc.DraftServiceStub(channel), "hostile")
        num_received = len(server.draft.received)
        await call.write(flood)
        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    wait_until(lambda: server.draft.dropped == ["hostile/1/1"])
    assert len(server.draft.received) == num_received
    assert await asyncio.to_thread(honest.steps, 5, 4, PATIENCE_S) == 20


async def test_one_sync_stream_holds_one_half_sent_open(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        speculate = await greeted(stub, TARGET_ID)
        sync = await greeted(stub, TARGET_ID, "Sync")
        second = stub.Sync(timeout=PATIENCE_S, metadata=credentials_of())
        await second.write(draft_pb2.SyncRequest(hello=hello(TARGET_ID)))
        assert await second.code() == grpc.StatusCode.ALREADY_EXISTS
        long = draft_pb2.Open(session_id=7, epoch=1, num_prompt_tokens=10_001, token_ids=[1] * 9)
        await sync.write(draft_pb2.SyncRequest(open=long))
        answer = (await speculate.read()).proposals[0]
        assert (answer.session_id, answer.reason) == (7, "context_full")
    assert not any(isinstance(message, Open) for message in server.draft.received)


async def test_targets_are_bounded_and_one_that_returns_is_no_other() -> None:
    server = DraftServer(ScriptedDraft(), tokens=TOKENS, max_targets=2)
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        first = await greeted(stub, "a")
        await greeted(stub, "b")
        third = stub.Speculate(timeout=PATIENCE_S, metadata=credentials_of("c"))
        await third.write(draft_pb2.SpeculateRequest(hello=hello("c")))
        assert await third.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        again = stub.Speculate(timeout=PATIENCE_S, metadata=credentials_of("a"))
        newer = convert.hello_to_wire(Hello("a", 1, 2, 1, "m", VOCAB))
        await again.write(draft_pb2.SpeculateRequest(hello=newer))
        assert (await again.read()).welcome.incarnation == 1
        assert await first.read() is grpc.aio.EOF
    await server.stop(0.1)


def test_a_target_of_many_sequences_stays_within_what_a_draft_takes(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member)
    num_sequences = convert.MAX_RECORDS + 50
    seq_ids = range(1, num_sequences + 1)
    decodings = [Decoding(proposer, seq_id, [seq_id]) for seq_id in seq_ids]
    for decoding in decodings:
        decoding.until_available()
    drafts = proposer.propose(dict.fromkeys(seq_ids, 2), PATIENCE_S)
    assert len(drafts) == num_sequences
    assert proposer.counters.num_disconnects == 0


def test_a_draft_that_sends_without_being_asked_is_left(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member, identity=identity())
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    (target,) = server.draft.hellos
    deliver = server.draft._deliver[target]
    noise = [Proposal(session_id, 1, 0, 0, []) for session_id in range(10**6, 10**6 + 1000)]
    faults, num_sent = proposer.counters.faults, 0
    while proposer.counters.num_disconnects == 0 and num_sent < 2 * BURST:
        deliver(noise)
        num_sent += len(noise)
        wait_until(
            lambda expected=num_sent - len(noise) // 2: (
                proposer.counters.num_disconnects > 0 or faults["unknown_session"] > expected
            )
        )
    assert proposer.counters.num_disconnects == 1
    decoding.until_available()  # it may come back, and begins anew
    assert decoding.steps(3, wait_s=PATIENCE_S) == 12
