"""Nobody speaks for a target, or drafts for one, without what proves who they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import pytest

from specdec.errors import UnavailableError
from specdec.rpc import convert
from specdec.rpc.credentials import ID_KEY, TOKEN_KEY, credentials
from specdec.rpc.dialling_drafter import draft_for
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.speculation.messages import Hello
from specdec.v1 import draft_pb2, draft_pb2_grpc, verify_pb2_grpc
from tests.integration.rpc.servers import (
    PATIENCE_S,
    PATIENT,
    PROMPT,
    TOKENS,
    credentials_of,
    member_at,
)
from tests.unit.rpc.scripted_draft import TARGET_ID, VOCAB, Decoding, ScriptedDraft, identity

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED

FORGERIES = [
    pytest.param((), UNAUTHENTICATED, id="nothing"),
    pytest.param(((ID_KEY, TARGET_ID),), UNAUTHENTICATED, id="an id alone"),
    pytest.param(credentials(TARGET_ID, ""), UNAUTHENTICATED, id="an empty token"),
    pytest.param(credentials(TARGET_ID, "00" * 32), UNAUTHENTICATED, id="a wrong token"),
    pytest.param(
        credentials(TARGET_ID, TOKENS.issue("other")), UNAUTHENTICATED, id="another's token"
    ),
    pytest.param(credentials_of("other"), DENIED, id="another's credentials"),
]


def hello(target_id: str = TARGET_ID, incarnation: int = 2**63) -> draft_pb2.Hello:
    return convert.hello_to_wire(Hello(target_id, incarnation, 9, 1, "m", VOCAB))


async def refusal(call: Any, first: Any) -> grpc.StatusCode:
    """The status of a stream that a server ends at its greeting."""
    await call.write(first)
    return await refusal_unasked(call)


async def refusal_unasked(call: Any) -> grpc.StatusCode:
    """The status of a stream that a server ends before it has read a message."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        assert await call.read() is grpc.aio.EOF
    return await call.code()


@pytest.mark.parametrize(("shown", "code"), FORGERIES)
@pytest.mark.parametrize("stream", ["Speculate", "Sync"])
async def test_a_victims_sessions_stay_whoever_says_its_name(
    serve, connect, stream, shown, code
) -> None:
    server = serve()
    victim = Decoding(connect(server.member), 1, PROMPT)
    await asyncio.to_thread(victim.until_available)
    request = {"Speculate": draft_pb2.SpeculateRequest, "Sync": draft_pb2.SyncRequest}[stream]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        call = getattr(stub, stream)(timeout=PATIENCE_S, metadata=shown)
        if code == DENIED:
            assert await refusal(call, request(hello=hello())) == code
        else:
            assert await refusal_unasked(call) == code
    assert server.draft.dropped == []
    assert await asyncio.to_thread(victim.steps, 5, 4, PATIENCE_S) == 20


@pytest.mark.parametrize(("shown", "code"), FORGERIES[:-1])
async def test_what_a_draft_is_and_knows_is_told_to_targets_alone(serve, shown, code) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Info(draft_pb2.InfoRequest(), timeout=PATIENCE_S, metadata=shown)
        assert refused.value.code() == code
        chunks = stub.Vocabulary(draft_pb2.VocabularyRequest(), timeout=PATIENCE_S, metadata=shown)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(chunks))
        assert refused.value.code() == code


def test_a_target_with_a_void_token_says_so_and_goes_on_without(serve, connect) -> None:
    """As after a restart of the draft, until the target hears of it."""
    server = serve()
    stale = member_at(server.port)
    decoding = Decoding(connect(), 1, PROMPT)
    proposer = decoding.proposer
    proposer.set_members([type(stale)(stale.replica_id, stale.address, token="11" * 32)])
    while proposer.disabled_reason(1) != "draft_refused":
        assert decoding.step() == 0
    proposer.set_members([stale])
    decoding.until_available()
    assert decoding.steps(3, wait_s=PATIENCE_S) == 12


@pytest.mark.parametrize(
    "target_id", ["", "a" * 65, "a/1/1", "a b", "r1\nERROR draft lost", "\u202e", "a\x00"]
)
def test_no_name_breaks_a_log_line_or_anothers_name(serve, connect, target_id, caplog) -> None:
    """It is refused before it is anywhere: gRPC itself refuses some, the draft all."""
    server = serve()

    async def greet() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(
                timeout=PATIENCE_S, metadata=credentials_of(TARGET_ID)
            )
            return await refusal(call, draft_pb2.SpeculateRequest(hello=hello(target_id)))

    with caplog.at_level(logging.DEBUG, logger="specdec"):
        assert asyncio.run(greet()) in (DENIED, grpc.StatusCode.INVALID_ARGUMENT)
    assert server.draft.hellos == {}
    assert all("\n" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("shown", "code"), [case for case in FORGERIES if case.id != "another's credentials"]
)
async def test_a_drafter_dials_in_with_a_token_only(shown, code) -> None:
    proposer = RemoteProposer(identity(), PATIENT)
    port = proposer.serve_verifier("127.0.0.1:0", TOKENS)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = verify_pb2_grpc.VerifierServiceStub(channel).Verify(
                timeout=PATIENCE_S, metadata=shown
            )
            assert await refusal_unasked(call) == code
        with pytest.raises(UnavailableError):
            await draft_for(ScriptedDraft(), f"127.0.0.1:{port}", "edge", "22" * 32)
    finally:
        proposer.shutdown()


async def test_a_bearer_prefix_is_all_that_metadata_adds() -> None:
    assert dict(credentials("a", "b")) == {ID_KEY: "a", TOKEN_KEY: "Bearer b"}
