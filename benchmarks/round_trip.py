"""How long a proposal takes between two processes, the draft's own work left out.

    python -m benchmarks.round_trip [--sequences 1 8 32] [--stepping | --busy]

The draft is a process of its own that answers every Commit at once; the target asks through
`RemoteProposer`, as the engine does, and waits. What is measured is everything between `propose`
and its return: two thread hops, two conversions each way, gRPC and the loopback. `--stepping` keeps
a model running on another thread of both processes, each on a core of its own; `--busy` runs pure
Python on another thread of the target, as detokenising and a gateway would.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from multiprocessing.connection import Connection

from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.model.executor import build_executor
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
from specdec.step_plan import StepPlan

VOCAB_SIZE = 50_000
TARGET_ID = "bench"
NUM_BLOCKS, CONTEXT = 32, 200
K = 4
READY_TIMEOUT_S = 120.0
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

    def behind(self, target: str) -> None:
        return None

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


class Stepper:
    """Decodes one sequence after the other on a thread of its own, as an engine beside would."""

    def __init__(self, model: str, quantization: str) -> None:
        self._executor = build_executor(
            ModelConfig(model=model, dtype="float32", quantization=quantization, num_threads=1),
            CacheConfig(num_blocks=NUM_BLOCKS),
            SchedulerConfig(),
            0,
        )
        self._plan = StepPlan()
        self._plan.add([1], CONTEXT, list(range(NUM_BLOCKS)), self._executor.block_size, 1)
        self._step()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _step(self) -> None:
        self._executor.execute(self._plan)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._step()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def serve(pipe: Connection, stepping_model: str | None) -> None:
    """The draft's process: tells where it is, and ends when the pipe does."""
    stepper = None
    if stepping_model is not None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        stepper = Stepper(stepping_model, "int8")

    async def run() -> None:
        server = DraftServer(EchoDraft())
        port = await server.start("127.0.0.1:0")
        token = server.tokens.issue(TARGET_ID)
        pipe.send(DraftMember("echo", f"127.0.0.1:{port}", token=token))
        await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)
        await server.stop(0.1)

    asyncio.run(run())
    if stepper is not None:
        stepper.stop()


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


@contextmanager
def draft_process(stepping_model: str | None) -> Iterator[DraftMember]:
    """A draft in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=serve, args=(theirs, stepping_model), daemon=True)
    child.start()
    if not ours.poll(READY_TIMEOUT_S):
        raise TimeoutError("the draft's process did not come up")
    yield ours.recv()
    ours.send(None)
    child.join(5)


@contextmanager
def linked(draft: DraftMember) -> Iterator[RemoteProposer]:
    proposer = RemoteProposer(TargetIdentity(TARGET_ID, 1, "echo", "hash", VOCAB_SIZE))
    proposer.set_members([draft])
    yield proposer
    proposer.shutdown()


@contextmanager
def stepping(model: str | None) -> Iterator[None]:
    """Run a model beside, where one is named, all on the first core."""
    if model is None:
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    stepper = Stepper(model, "none")
    try:
        yield
    finally:
        stepper.stop()
        os.sched_setaffinity(0, cores)


def run(
    sequences: list[int], num_rounds: int, busy: bool = False, stepping_model: str | None = None
) -> dict[int, list[float]]:
    """Print percentiles for each number of sequences; returns the times in ms."""
    stop = threading.Event()
    times_ms = {}
    with (
        draft_process(stepping_model) as draft,
        stepping(stepping_model),
        linked(draft) as proposer,
    ):
        if busy:
            threading.Thread(target=keep_busy, args=(stop,), daemon=True).start()
        print("sequences   p50 ms   p90 ms   p99 ms   max ms")
        first = 0
        for num_sequences in sequences:
            seq_ids = range(first, first + num_sequences)
            first += num_sequences
            times_ms[num_sequences] = measure(proposer, seq_ids, num_rounds)
            report(num_sequences, times_ms[num_sequences])
        stop.set()
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--stepping", action="store_true")
    parser.add_argument("--model", default="smollm2", help="what both processes step")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--switch-interval-ms", type=float, help="Python's own: 5")
    options = parser.parse_args()
    if options.switch_interval_ms is not None:
        sys.setswitchinterval(options.switch_interval_ms / 1000)
    model = options.model if options.stepping else None
    run(options.sequences, options.rounds, options.busy, model)


if __name__ == "__main__":
    main()
