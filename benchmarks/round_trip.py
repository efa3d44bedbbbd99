"""How long a proposal takes between two processes, the draft's own work left out.

    python -m benchmarks.round_trip [--sequences 1 8 32] [--busy [--switch-interval-ms 0.5]]

The draft is a process of its own that answers every Commit at once; the target asks through
`RemoteProposer`, as the engine does, and waits. What is measured is everything between `propose`
and its return: two thread hops, two conversions each way, gRPC and the loopback. `--busy` runs
pure Python on another thread of the target meanwhile, as detokenising and a gateway would.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Sequence as SequenceOf
from multiprocessing.connection import Connection

from specdec.params import SamplingParams
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.remote_proposer import DraftMember, RemoteProposer
from specdec.sequence import Sequence, Verification
from specdec.speculation.draft_backend import Deliver
from specdec.speculation.handshake import TargetIdentity
from specdec.speculation.messages import (
    PROTOCOL_VERSION,
    Commit,
    DraftInfo,
    DraftMessage,
    Heartbeat,
    Hello,
    Open,
    Proposal,
    TargetMessage,
)
from specdec.speculation.proposer import Committed

VOCAB_SIZE = 50_000
K = 4
READY_TIMEOUT_S = 30.0
WAIT_S = 5.0


class EchoDraft:
    """A DraftBackend that has every answer ready."""

    def __init__(self) -> None:
        self._deliver: dict[str, Deliver] = {}

    def info(self) -> DraftInfo:
        return DraftInfo("echo", "hash", VOCAB_SIZE, 10**9, "model", PROTOCOL_VERSION, 1, K)

    def vocabulary(self) -> SequenceOf[str]:
        return []

    def attach(self, target: str, hello: Hello, deliver: Deliver) -> None:
        self._deliver[target] = deliver

    def drop_target(self, target: str) -> None:
        self._deliver.pop(target, None)

    def load(self) -> Heartbeat:
        return Heartbeat(0, 0)

    def submit(self, target: str, messages: list[TargetMessage]) -> None:
        self._deliver[target]([a for m in messages for a in self._answer(m)])

    def _answer(self, message: TargetMessage) -> list[DraftMessage]:
        if isinstance(message, Open):
            return [Proposal(message.session_id, message.epoch, 0, 0, [])]
        if isinstance(message, Commit):
            base_len = message.base_len + len(message.token_ids)
            tokens = list(range(message.k))
            return [Proposal(message.session_id, message.epoch, base_len, message.round, tokens)]
        return []


def serve(pipe: Connection) -> None:
    """The draft's process: tells its port, and ends when the pipe does."""

    async def run() -> None:
        server = DraftServer(EchoDraft())
        pipe.send(await server.start("127.0.0.1:0"))
        await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)
        await server.stop(0.1)

    asyncio.run(run())


def open_sequences(proposer: RemoteProposer, seq_ids: range) -> None:
    params = SamplingParams(temperature=0.0)
    proposer.open(
        [
            Sequence(i, str(i), [1], 1, params, 1, Verification.GREEDY, frozenset(), 10**9)
            for i in seq_ids
        ]
    )
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not all(proposer.available(i) for i in seq_ids):
        if time.monotonic() > deadline_s:
            raise TimeoutError("the draft did not become ready")
        time.sleep(0.01)


def measure(proposer: RemoteProposer, seq_ids: range, num_rounds: int) -> list[float]:
    """Milliseconds from `propose` to its return, for each round."""
    open_sequences(proposer, seq_ids)
    ks = dict.fromkeys(seq_ids, K)
    times_ms: list[float] = []
    for _ in range(num_rounds):
        started_s = time.perf_counter()
        drafts = proposer.propose(ks, WAIT_S)
        times_ms.append(1000 * (time.perf_counter() - started_s))
        assert len(drafts) == len(ks), "a proposal is missing"
        proposer.commit([Committed(i, [9], K, 0) for i in seq_ids])
    proposer.close(seq_ids)
    return times_ms[num_rounds // 10 :]


def report(num_sequences: int, times_ms: list[float]) -> None:
    cuts = statistics.quantiles(times_ms, n=100)
    print(
        f"{num_sequences:9d}  {cuts[49]:7.3f}  {cuts[89]:7.3f}  {cuts[98]:7.3f}"
        f"  {max(times_ms):7.3f}",
        flush=True,
    )


def keep_busy(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--switch-interval-ms", type=float, help="Python's own: 5")
    options = parser.parse_args()
    if options.switch_interval_ms is not None:
        sys.setswitchinterval(options.switch_interval_ms / 1000)

    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=serve, args=(theirs,), daemon=True)
    child.start()
    identity = TargetIdentity("bench", 1, "echo", "hash", VOCAB_SIZE)
    proposer = RemoteProposer(identity)
    if not ours.poll(READY_TIMEOUT_S):
        raise TimeoutError("the draft's process did not come up")
    proposer.set_members([DraftMember("echo", f"127.0.0.1:{ours.recv()}")])
    stop = threading.Event()
    if options.busy:
        threading.Thread(target=keep_busy, args=(stop,), daemon=True).start()

    print("sequences   p50 ms   p90 ms   p99 ms   max ms")
    first = 0
    for num_sequences in options.sequences:
        seq_ids = range(first, first + num_sequences)
        first += num_sequences
        report(num_sequences, measure(proposer, seq_ids, options.rounds))
    stop.set()
    proposer.shutdown()
    ours.send(None)
    child.join(5)


if __name__ == "__main__":
    main()
