"""Drafters that dial in: used like our own, and never believed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import grpc
import numpy as np
import pytest

from specdec.errors import UnavailableError
from specdec.rpc import convert
from specdec.rpc.dialling_drafter import draft_for
from specdec.rpc.draft_link import LinkSettings
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.rpc.transport import LoopThread
from specdec.sampling.law import SparseLaw
from specdec.sequence import Verification
from specdec.speculation.messages import Open, Proposal
from specdec.speculation.proposer import Committed
from specdec.v1 import verify_pb2, verify_pb2_grpc
from tests.integration.rpc.servers import (
    PATIENCE_S,
    PATIENT,
    PROMPT,
    TOKENS,
    credentials_of,
    member_at,
)
from tests.unit.rpc.scripted_draft import (
    VOCAB,
    Decoding,
    ScriptedDraft,
    continuation,
    identity,
    sequence,
    wait_until,
)


class Target:
    def __init__(self, settings: LinkSettings = PATIENT) -> None:
        self.proposer = RemoteProposer(identity(), settings)
        self.port = self.proposer.serve_verifier("127.0.0.1:0", TOKENS)
        self.thread = LoopThread("edge")

    def dial(self, draft: ScriptedDraft, name: str = "edge-1") -> Future:
        address = f"127.0.0.1:{self.port}"
        return asyncio.run_coroutine_threadsafe(
            draft_for(draft, address, name, TOKENS.issue(name)), self.thread.loop
        )

    def stop(self) -> None:
        self.thread.stop()
        self.proposer.shutdown()


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.stop()


@pytest.fixture
def wary_target() -> Iterator[Target]:
    """It gives up a drafter that is silent for 0.4 s."""
    target = Target(replace(PATIENT, suspect_after=3, lost_after=8))
    yield target
    target.stop()


def test_a_drafter_dials_in_proposes_and_leaves(target) -> None:
    draft = ScriptedDraft()
    decoding = Decoding(target.proposer, 1, PROMPT)
    assert decoding.steps(3) == 0
    call = target.dial(draft)
    decoding.until_available()
    assert decoding.steps(10, wait_s=PATIENCE_S) == 40
    call.cancel()
    wait_until(lambda: not target.proposer.available(1))
    assert len(draft.dropped) == 1
    assert decoding.steps(3) == 0
    again = target.dial(draft)
    decoding.until_available()
    assert decoding.steps(3, wait_s=PATIENCE_S) == 12
    assert len(draft.hellos) == 2  # another connection has another name
    again.cancel()


def test_a_law_from_outside_is_ignored(target) -> None:
    """It would steer the output: the verifier accepts with probability target / draft."""
    draft = ScriptedDraft()

    def lie(answers: list) -> list:
        law = SparseLaw(np.arange(2, dtype=np.uint32), np.array([1, 65534], np.uint16))
        return [
            replace(p, laws=[law] * len(p.token_ids)) if isinstance(p, Proposal) else p
            for p in answers
        ]

    draft.rewrite = lie
    target.dial(draft)
    request = sequence(1, PROMPT)
    request.verification = Verification.BLOCK
    target.proposer.open([request])
    wait_until(lambda: target.proposer.available(1))
    drafts = target.proposer.propose({1: 4}, PATIENCE_S)[1]
    assert drafts.token_ids == continuation(PROMPT, 4)
    assert drafts.laws == []
    assert target.proposer.counters.faults == {"law_ignored": 1}


def test_seen_tokens_of_a_drafter_from_outside_do_not_come_back_either(target) -> None:
    draft = ScriptedDraft()
    target.dial(draft)
    request = sequence(1, PROMPT)
    request.verification = Verification.BLOCK
    target.proposer.open([request])
    wait_until(lambda: target.proposer.available(1))
    tokens = target.proposer.propose({1: 4}, PATIENCE_S)[1].token_ids
    draft.rewrite = lambda answers: []
    target.proposer.commit([Committed(1, tokens[:1], 4, 0)])
    assert target.proposer.propose({1: 4}, 0.05) == {}


def test_our_own_draft_comes_first(target) -> None:
    outside, own = ScriptedDraft(), ScriptedDraft()
    target.dial(outside)
    wait_until(lambda: bool(outside.hellos))
    first = Decoding(target.proposer, 1, PROMPT)
    first.until_available()
    server = DraftServer(own, tokens=TOKENS)
    thread = LoopThread("own")
    port = thread.run(server.start("127.0.0.1:0"), PATIENCE_S)
    target.proposer.set_members([member_at(port, "own")])
    wait_until(lambda: bool(own.hellos) and "own" in target.proposer.loads())
    second = Decoding(target.proposer, 2, PROMPT)
    second.until_available()
    assert [m.session_id for m in own.received if isinstance(m, Open)] == [2]
    thread.run(server.stop(0.1), PATIENCE_S)
    # Moved to the drafter outside, which is all that is left.
    wait_until(lambda: any(isinstance(m, Open) and m.session_id == 2 for m in outside.received))
    second.until_available()
    assert second.steps(3, wait_s=PATIENCE_S) == 12
    thread.stop()


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (ScriptedDraft(tokenizer_hash="other"), "tokenizers differ"),
        (ScriptedDraft(protocol_version=2), "protocol version 2"),
    ],
)
def test_misfits_are_refused(target, draft, why) -> None:
    with pytest.raises(UnavailableError, match=why):
        target.dial(draft).result(PATIENCE_S)
    assert draft.hellos == {}


async def test_who_does_not_say_who_it_is_gets_nothing(target) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{target.port}") as channel:
        call = verify_pb2_grpc.VerifierServiceStub(channel).Verify(
            timeout=PATIENCE_S, metadata=credentials_of("edge-1")
        )
        await call.write(verify_pb2.VerifyRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_silent_drafter_is_given_up(wary_target) -> None:
    decoding = Decoding(wary_target.proposer, 1, PROMPT)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{wary_target.port}") as channel:
        call = verify_pb2_grpc.VerifierServiceStub(channel).Verify(
            timeout=PATIENCE_S, metadata=credentials_of("edge-1")
        )
        info = convert.info_to_wire(ScriptedDraft().info())
        await call.write(verify_pb2.VerifyRequest(info=info))
        assert (await call.read()).hello.vocab_size == VOCAB
        async with asyncio.timeout(PATIENCE_S):
            while await call.read() is not grpc.aio.EOF:
                pass
    assert decoding.proposer.disabled_reason(1) == "draft_unavailable"


def test_dialling_nobody(target) -> None:
    target.proposer.shutdown()
    with pytest.raises(UnavailableError):
        target.dial(ScriptedDraft()).result(PATIENCE_S)
