"""Proposals over real gRPC: everything that can happen to a draft, and what it costs the target.

Servers run on loopback, on threads of this process or, where a draft must be killed or hung, in
processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specdec.errors import UnavailableError
from specdec.rpc import convert
from specdec.rpc.draft_link import LinkSettings
from specdec.rpc.draft_server import SERVICE, DraftServer
from specdec.rpc.remote_proposer import DraftMember, RemoteProposer
from specdec.rpc.transport import LoopThread
from specdec.speculation.messages import Close, Heartbeat, Hello, Open, Proposal, Resync
from specdec.v1 import draft_pb2, draft_pb2_grpc
from tests.unit.rpc.scripted_draft import (
    VOCAB,
    VOCABULARY,
    Decoding,
    ScriptedDraft,
    identity,
    wait_until,
)

PROMPT = [1, 2, 3]
FAST = LinkSettings(
    heartbeat_s=0.05, lost_after=8, min_backoff_s=0.02, max_backoff_s=0.2, misfit_retry_s=0.2
)


class Server:
    """A draft server on a thread of its own."""

    def __init__(self, draft: ScriptedDraft, port: int = 0) -> None:
        self.draft = draft
        self._thread = LoopThread("draft-server")
        self.server: DraftServer | None = None
        self.port = port
        self._thread.run(self._start(), 5.0)

    async def _start(self) -> None:
        self.server = DraftServer(self.draft)
        self.port = await self.server.start(f"127.0.0.1:{self.port}")

    @property
    def member(self) -> DraftMember:
        return DraftMember(f"draft-{self.port}", f"127.0.0.1:{self.port}")

    def drain(self) -> None:
        self._thread.run(self.server.drain(), 5.0)

    def stop(self) -> None:
        self._thread.run(self.server.stop(0.1), 5.0)


@pytest.fixture
def serve() -> Iterator:
    servers: list[Server] = []

    def start(draft: ScriptedDraft | None = None, port: int = 0) -> Server:
        servers.append(Server(draft or ScriptedDraft(), port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator:
    proposers: list[RemoteProposer] = []

    def start(*members: DraftMember, **kwargs) -> RemoteProposer:
        proposers.append(RemoteProposer(kwargs.pop("identity", identity()), FAST))
        proposers[-1].set_members(members)
        return proposers[-1]

    yield start
    for proposer in proposers:
        proposer.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_every_draft_token_is_used(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    assert decoding.steps(20, k=4, wait_s=2.0) == 80
    counters = decoding.proposer.counters
    assert (counters.num_asks, counters.num_hits, counters.num_misses) == (20, 20, 0)
    assert not counters.faults
    decoding.proposer.close([1])
    wait_until(lambda: not server.draft.sessions)
    assert server.draft.received[-1] == Close(1, 1)


def test_one_message_carries_all_sequences_of_a_step(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member)
    decodings = [Decoding(proposer, seq_id, [seq_id]) for seq_id in range(1, 9)]
    for decoding in decodings:
        decoding.until_available()
    sizes: list[int] = []
    server.draft.rewrite = lambda answers: sizes.append(len(answers)) or answers
    drafts = proposer.propose(dict.fromkeys(range(1, 9), 3), 2.0)
    assert {seq_id: len(d.token_ids) for seq_id, d in drafts.items()} == dict.fromkeys(
        range(1, 9), 3
    )
    assert sizes == [8]


def test_a_draft_that_is_absent_at_start(serve, connect) -> None:
    port = free_port()
    proposer = connect(DraftMember("d", f"127.0.0.1:{port}"))
    decoding = Decoding(proposer, 1, PROMPT)
    assert decoding.steps(50) == 0
    assert proposer.propose({1: 4}, 0.5) == {}
    assert decoding.longest_s < 0.1
    assert proposer.disabled_reason(1) == "draft_unavailable"
    serve(port=port)
    decoding.until_available()
    assert decoding.steps(5, wait_s=2.0) == 20
    assert proposer.disabled_reason(1) is None


def test_a_silent_draft_costs_no_more_than_the_wait(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    server.draft.rewrite = lambda answers: []
    started_s = time.monotonic()
    assert decoding.steps(5, wait_s=0.1) == 0
    assert 0.45 < time.monotonic() - started_s < 1.5
    assert decoding.proposer.counters.num_misses == 5


def test_late_proposals_serve_the_next_step(serve, connect) -> None:
    """Nobody waits, and still every step but the first has draft tokens: each answers the step
    before, reaching beyond what that one verified."""
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    server.draft.delay_s = 0.01
    for _ in range(20):
        decoding.step(k=4, wait_s=0.0)
        time.sleep(0.03)
    assert decoding.num_accepted > 50
    assert decoding.proposer.counters.num_late_used > 15


def test_duplicates_and_reordering_change_nothing(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    past: list[Proposal] = []

    def repeat(answers: list) -> list:
        past.extend(answers)
        copies = [replace(p, token_ids=list(p.token_ids)) for p in past[-5:]]
        return [*reversed(copies), *copies]

    server.draft.rewrite = repeat
    assert decoding.steps(30, wait_s=2.0) == 120
    # One message holds one proposal per session, so most copies die in the server's outbox.
    assert not decoding.proposer.counters.faults


GARBAGE = [
    lambda p: replace(p, token_ids=[2**32 - 1, *p.token_ids]),
    lambda p: replace(p, token_ids=[VOCAB] * 4),
    lambda p: replace(p, token_ids=p.token_ids * 100),
    lambda p: replace(p, base_len=p.base_len + 1),
    lambda p: replace(p, base_len=2**32 - 1),
    lambda p: replace(p, epoch=p.epoch + 1),
    lambda p: replace(p, epoch=0),
    lambda p: replace(p, session_id=2**64 - 1),
    lambda p: replace(p, round=p.round + 1000),
    lambda p: replace(p, reason="no such reason"),
    lambda p: Resync(p.session_id, 999, "of the future"),
]


@pytest.mark.parametrize("spoil", GARBAGE)
def test_garbage_is_survived(serve, connect, spoil) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    server.draft.rewrite = lambda answers: [spoil(answer) for answer in answers]
    decoding.steps(5, wait_s=0.05)
    server.draft.rewrite = list
    decoding.until_available()
    assert decoding.steps(5, wait_s=2.0) == 20  # the session was never lost
    counters = decoding.proposer.counters
    assert counters.faults or counters.num_stale or counters.declines
    assert counters.num_disconnects == 0


def test_a_draft_that_forgets_a_session_gets_it_again(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()
    decoding.steps(3, wait_s=2.0)
    server.draft.sessions.clear()
    decoding.step(wait_s=0.05)
    decoding.until_available()
    assert decoding.steps(5, wait_s=2.0) == 20
    assert decoding.proposer.counters.num_resyncs == 1
    last_open = [m for m in server.draft.received if isinstance(m, Open)][-1]
    assert last_open.epoch == 2
    assert len(last_open.output_token_ids) >= 15


def test_a_restarted_draft_heals(serve, connect) -> None:
    first = serve(ScriptedDraft(incarnation=1))
    decoding = Decoding(connect(first.member), 1, PROMPT)
    decoding.until_available()
    decoding.steps(3, wait_s=2.0)
    first.stop()
    wait_until(lambda: not decoding.proposer.available(1))
    decoding.steps(10)  # goes on without
    serve(ScriptedDraft(incarnation=2), port=first.port)
    decoding.until_available()
    assert decoding.steps(5, wait_s=2.0) == 20
    assert decoding.proposer.counters.num_disconnects == 1


def test_losing_the_stream_wakes_the_waiting_engine_at_once(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()

    def break_off(answers: list) -> list:
        for connection in list(server.server._servicer.connections.values()):
            connection.close()
        return []

    server.draft.rewrite = break_off
    decoding.step(wait_s=10.0)
    assert decoding.longest_s < 2.0


def test_the_first_differing_token_is_named(serve, connect) -> None:
    other = [*VOCABULARY[:17], "seventeen", *VOCABULARY[18:]]
    server = serve(ScriptedDraft(tokenizer_hash="other", vocabulary=other))
    proposer = connect(server.member, identity=identity(VOCABULARY))
    decoding = Decoding(proposer, 1, PROMPT)
    wait_until(lambda: "incompatible" in (proposer.disabled_reason(1) or ""))
    assert proposer.disabled_reason(1) == (
        "draft_incompatible: token 17 differs: '<17>' here, 'seventeen' at the draft"
    )
    assert decoding.steps(5) == 0
    assert server.draft.received == []


def test_padding_and_other_hashes_of_the_same_vocabulary_fit(serve, connect) -> None:
    server = serve(ScriptedDraft(tokenizer_hash="other", vocabulary=[*VOCABULARY, "", ""]))
    decoding = Decoding(connect(server.member, identity=identity(VOCABULARY)), 1, PROMPT)
    decoding.until_available()
    assert decoding.step(wait_s=2.0) == 4


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (ScriptedDraft(tokenizer_hash="other"), "draft_incompatible: the tokenizers differ"),
        (
            ScriptedDraft(protocol_version=2),
            "draft_incompatible: protocol version 2 differs from 1",
        ),
    ],
)
def test_misfits_are_refused_by_name(serve, connect, draft, reason) -> None:
    proposer = connect(serve(draft).member)
    Decoding(proposer, 1, PROMPT)
    wait_until(lambda: proposer.disabled_reason(1) == reason)
    assert not proposer.available(1)


def test_a_shorter_context_ends_speculation_not_the_request(serve, connect) -> None:
    server = serve(ScriptedDraft(max_model_len=40))
    proposer = connect(server.member)
    decoding = Decoding(proposer, 1, PROMPT)
    long = Decoding(proposer, 2, list(range(100)))
    decoding.until_available()
    decoding.steps(30, wait_s=2.0)
    assert proposer.disabled_reason(1) == "draft_context_full"
    assert 28 <= decoding.num_accepted <= 37
    assert proposer.disabled_reason(2) == "draft_context_full"
    assert long.steps(3) == 0
    wait_until(lambda: not server.draft.sessions)


def test_sessions_spread_and_move(serve, connect) -> None:
    one, two = serve(), serve()
    proposer = connect(one.member, two.member)
    wait_until(lambda: one.draft.hellos and two.draft.hellos)
    time.sleep(0.1)
    decodings = [Decoding(proposer, seq_id, [seq_id]) for seq_id in range(1, 7)]
    for decoding in decodings:
        decoding.until_available()
    assert (len(one.draft.sessions), len(two.draft.sessions)) == (3, 3)
    proposer.set_members([two.member])
    wait_until(lambda: len(two.draft.sessions) == 6 and not one.draft.sessions)
    for decoding in decodings:
        decoding.until_available()
        assert decoding.steps(3, wait_s=2.0) == 12


def test_a_draining_draft_hands_its_sessions_over(serve, connect) -> None:
    one, two = serve(), serve()
    proposer = connect(one.member)
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    decoding.steps(2, wait_s=2.0)
    proposer.set_members([one.member, two.member])
    wait_until(lambda: bool(two.draft.hellos))
    one.drain()
    wait_until(lambda: len(two.draft.sessions) == 1 and not one.draft.sessions)
    decoding.until_available()
    assert decoding.steps(3, wait_s=2.0) == 12
    two.drain()
    wait_until(lambda: proposer.disabled_reason(1) == "draft_draining")
    assert decoding.steps(3) == 0


def test_a_prompt_larger_than_a_message(serve, connect) -> None:
    """It goes in pieces, and a commit of another session does not wait for it."""
    server = serve(ScriptedDraft(max_model_len=10**7))
    proposer = connect(server.member)
    prompt = [i % VOCAB for i in range(1_000_000)]
    small = Decoding(proposer, 1, PROMPT)
    small.until_available()
    large = Decoding(proposer, 2, prompt)
    assert small.steps(5, wait_s=2.0) == 20
    large.until_available()
    opened = [m for m in server.draft.received if isinstance(m, Open)][-1]
    assert opened.prompt_token_ids == prompt
    assert large.step(wait_s=5.0) == 4


def test_buffered_commits_arrive_without_being_asked_for(serve, connect) -> None:
    server = serve()
    decoding = Decoding(connect(server.member), 1, PROMPT)
    decoding.until_available()

    def known() -> int:
        return sum(len(text) for _, _, text in server.draft.sessions.values())

    decoding.steps(32, k=0)
    wait_until(lambda: known() >= len(PROMPT) + 32, 0.3)
    decoding.steps(3, k=0)
    wait_until(lambda: known() == len(PROMPT) + 35, 3.0)


def test_shutdown_frees_the_draft(serve, connect) -> None:
    server = serve()
    proposer = connect(server.member)
    decoding = Decoding(proposer, 1, PROMPT)
    decoding.until_available()
    proposer.shutdown()
    wait_until(lambda: not server.draft.sessions and server.server.num_targets == 0)
    assert decoding.proposer.propose({1: 4}, 0.1) == {}


# The server alone, spoken to by hand


def hello(
    connection: int = 1, incarnation: int = 1, version: int = 1, vocab_size: int = VOCAB
) -> draft_pb2.Hello:
    return convert.hello_to_wire(Hello("t", incarnation, connection, version, "m", vocab_size))


async def test_a_newer_connection_replaces_an_older_one(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        old, new, late = stub.Speculate(), stub.Speculate(), stub.Speculate()
        async with asyncio.timeout(5):
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
        assert server.draft.dropped == ["t/1/1"]


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
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate()
        async with asyncio.timeout(5):
            await call.write(first)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
        assert refused.value.code() == code
        assert server.draft.hellos == {}


async def test_the_end_of_a_stream_is_an_abort(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate()
        async with asyncio.timeout(5):
            await call.write(draft_pb2.SpeculateRequest(hello=hello()))
            await call.read()
            beat = draft_pb2.Heartbeat(sequence_number=9, sent_ns=77)
            await call.write(draft_pb2.SpeculateRequest(heartbeat=beat))
            echo = convert.heartbeat_from_wire((await call.read()).heartbeat)
            assert echo == Heartbeat(9, 77, num_free_blocks=42, idle_fraction=0.5)
        call.cancel()
        wait_until(lambda: server.draft.dropped == ["t/1/1"])


async def test_health_and_reflection(serve) -> None:
    server = serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == status.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = [r async for r in reflection.ServerReflectionInfo(iter([request]), timeout=5)]
        assert SERVICE in [s.name for s in listed[0].list_services_response.service]
        server.drain()
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert answer.status == status.NOT_SERVING
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(timeout=5)
        await call.write(draft_pb2.SpeculateRequest(hello=hello()))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_taken_port_is_an_error(serve) -> None:
    server = serve()
    with pytest.raises(UnavailableError, match=str(server.port)):
        await DraftServer(ScriptedDraft()).start(f"127.0.0.1:{server.port}")


# Drafts in processes of their own

CHILD = """
import asyncio, sys
from specdec.rpc.draft_server import DraftServer
from tests.unit.rpc.scripted_draft import ScriptedDraft

async def main():
    server = DraftServer(ScriptedDraft(incarnation=int(sys.argv[2])))
    print(await server.start("127.0.0.1:" + sys.argv[1]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def spawn() -> Iterator:
    children: list[subprocess.Popen] = []

    def start(port: int, incarnation: int) -> subprocess.Popen:
        command = [sys.executable, "-c", CHILD, str(port), str(incarnation)]
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
        children.append(child)
        assert int(child.stdout.readline()) == port
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(10)


def test_a_killed_draft_costs_no_token_and_comes_back(spawn, connect) -> None:
    port = free_port()
    child = spawn(port, 1)
    decoding = Decoding(connect(DraftMember("d", f"127.0.0.1:{port}")), 1, PROMPT)
    decoding.until_available(20.0)
    assert decoding.steps(5, wait_s=5.0) == 20
    child.kill()
    child.wait(10)
    decoding.steps(30, wait_s=1.0)
    assert decoding.longest_s < 0.9  # the loss of the stream, not the wait, ended it
    wait_until(lambda: decoding.proposer.disabled_reason(1) == "draft_unavailable")
    spawn(port, 2)
    decoding.until_available(20.0)
    assert decoding.steps(5, wait_s=5.0) == 20


def test_a_hung_draft_is_suspected_then_given_up_and_forgiven(spawn, connect) -> None:
    port = free_port()
    child = spawn(port, 1)
    decoding = Decoding(connect(DraftMember("d", f"127.0.0.1:{port}")), 1, PROMPT)
    decoding.until_available(20.0)
    decoding.steps(2, wait_s=5.0)
    os.kill(child.pid, signal.SIGSTOP)
    started_s = time.monotonic()
    decoding.step(wait_s=10.0)
    assert time.monotonic() - started_s < 2.0  # suspicion ends the wait
    assert not decoding.proposer.available(1)
    wait_until(lambda: decoding.proposer.counters.num_disconnects == 1, 10.0)
    assert decoding.steps(20) == 0
    os.kill(child.pid, signal.SIGCONT)
    decoding.until_available(20.0)
    assert decoding.steps(5, wait_s=5.0) == 20
