"""A target that does its worst, beside one that wants its proposals: a real draft, over gRPC.

Draft, honest and hostile target are processes of their own. What is asserted has wide room, since
the machine may be busy; `-s` prints the figures.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from specdec.config import ModelConfig
from specdec.engine.draft_builder import token_strings
from specdec.model.tokenizer import load_tokenizer, tokenizer_hash
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.speculation.handshake import TargetIdentity
from specdec.speculation.proposer import Committed
from tests.conftest import REPOSITORY
from tests.integration.rpc.servers import PATIENCE_S, PATIENT, member_at
from tests.unit.rpc.scripted_draft import TARGET_ID, sequence, wait_until

NUM_ROUNDS = 20
K = 4
# A message of tiny commits stalled all targets for 12 s, a thousand rounds.
WORST_RATIO = 50

DRAFT = """
import asyncio, sys
from specdec.config import CacheConfig, DraftConfig, ModelConfig
from specdec.engine.draft_thread import build_draft_thread
from specdec.rpc.draft_server import DraftServer
from tests.integration.rpc.servers import TOKENS

async def main():
    thread = build_draft_thread(DraftConfig(
        draft=ModelConfig(model=sys.argv[1], dtype="float64", num_threads=1),
        cache=CacheConfig(block_size=4, num_blocks=2048),
    ))
    server = DraftServer(thread, tokens=TOKENS)
    print(await server.start("127.0.0.1:0"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

HOSTILE = """
import asyncio, itertools, sys
import grpc
from specdec.rpc import convert
from specdec.speculation.messages import Hello
from specdec.v1 import draft_pb2 as pb, draft_pb2_grpc, sampling_pb2
from tests.integration.rpc.servers import credentials_of

port, kind = sys.argv[1:]
ids = itertools.count()
GREEDY = sampling_pb2.SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)

def opened(num_tokens, sent=None):
    return pb.SyncRequest(open=pb.Open(
        session_id=next(ids), epoch=1, num_prompt_tokens=num_tokens, params=GREEDY,
        token_ids=[5] * (num_tokens if sent is None else sent), verification=1))

def flood(kind):
    if kind == "commits":
        commit = pb.Commit(session_id=10**9, epoch=1, k=1)
        return pb.SpeculateRequest(commits=[commit] * convert.MAX_RECORDS), None
    if kind == "too large":
        return pb.SpeculateRequest(commits=[pb.Commit()] * 2_000_000), None
    if kind == "opens":
        return None, opened(60)
    if kind == "half-sent":
        return None, opened(100, sent=99)
    first = next(ids)
    commits = [pb.Commit(session_id=s, epoch=1, round=first, k=8, deadline_us=10**12)
               for s in range(1000)]
    return pb.SpeculateRequest(commits=commits), None

async def attack(number):
    async with grpc.aio.insecure_channel(
            "127.0.0.1:" + port, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        hello = convert.hello_to_wire(Hello("hostile", 1, number, 1, "m", 288))
        steps = stub.Speculate(metadata=credentials_of("hostile"))
        await steps.write(pb.SpeculateRequest(hello=hello))
        await steps.read()
        sync = stub.Sync(metadata=credentials_of("hostile"))
        await sync.write(pb.SyncRequest(hello=hello))
        await sync.read()
        if kind == "asks":
            for _ in range(1000):
                await sync.write(opened(4))
        print("begun", flush=True)
        async def read():
            while await steps.read() is not grpc.aio.EOF:
                pass
        reading = asyncio.ensure_future(read())
        while True:
            step, bulk = flood(kind)
            if step is not None:
                await steps.write(step)
            if bulk is not None:
                await sync.write(bulk)

async def main():
    for number in itertools.count(1):
        try:
            await attack(number)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


@contextlib.contextmanager
def child(code: str, *arguments: str) -> Iterator[str]:
    """A process that has printed a line: that line."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    try:
        line = process.stdout.readline().strip()
        assert line, "it ended before it began"
        yield line
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def draft_port(tiny_llama) -> Iterator[int]:
    with child(DRAFT, str(tiny_llama)) as port:
        yield int(port)


class Honest:
    """One sequence, whose every draft token is accepted."""

    def __init__(self, folder, port: int) -> None:
        tokenizer = load_tokenizer(ModelConfig(model=str(folder)))
        vocabulary = token_strings(tokenizer)
        identity = TargetIdentity(TARGET_ID, 1, "tiny", tokenizer_hash(tokenizer), 288, vocabulary)
        self.proposer = RemoteProposer(identity, PATIENT)
        self.proposer.set_members([member_at(port)])

    def rounds(self, seq_id: int) -> list[float]:
        """Seconds of each; every one has its proposal."""
        self.proposer.open([sequence(seq_id, [5, 6, 7])])
        wait_until(lambda: self.proposer.available(seq_id))
        seconds = []
        for _ in range(NUM_ROUNDS):
            started_s = time.monotonic()
            drafts = self.proposer.propose({seq_id: K}, PATIENCE_S)[seq_id]
            seconds.append(time.monotonic() - started_s)
            assert len(drafts.token_ids) == K
            committed = [*drafts.token_ids[:1], 9]
            self.proposer.commit([Committed(seq_id, committed, K, 1)])
        self.proposer.close([seq_id])
        return seconds


@pytest.fixture(scope="module")
def honest(tiny_llama, draft_port) -> Iterator[Honest]:
    honest = Honest(tiny_llama, draft_port)
    yield honest
    honest.proposer.shutdown()


KINDS = ["commits", "too large", "opens", "half-sent", "asks"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_target_gets_its_proposals_beside_a_hostile_one(honest, draft_port, kind) -> None:
    seq_id = 10 * KINDS.index(kind)
    alone = honest.rounds(seq_id + 1)
    with child(HOSTILE, str(draft_port), kind):
        beside = honest.rounds(seq_id + 2)
    after = honest.rounds(seq_id + 3)
    medians = [1000 * statistics.median(times) for times in (alone, beside, after)]
    print(
        f"\n{kind:10s} ms per round: alone {medians[0]:.1f}, beside {medians[1]:.1f} "
        f"(longest {1000 * max(beside):.0f}), after {medians[2]:.1f}"
    )
    assert medians[1] < WORST_RATIO * max(medians[0], medians[2])
    assert honest.proposer.counters.num_disconnects == 0
