"""What every tensor-parallel rank does: join the group, build its share of the model, obey plans.

Tensors travel in torch's default group (gloo on CPU, NCCL on CUDA), plans in a gloo group beside
it. Every wait has a deadline: a rank that is lost, or that only stands still, is an error on all
others within seconds. Nothing here draws a random number or chooses a token: rank 0's engine does.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import TCPStore

from specdec.config import CacheConfig, ModelConfig
from specdec.errors import UnavailableError
from specdec.model.plan_codec import decode_plan, encode_plan
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan

# The part of a plan that travels with its length, in one broadcast; a longer one takes two.
_FIRST_BROADCAST = 2048
_DEVICE_POLL_S = 50e-6


@dataclass(frozen=True)
class Deadlines:
    """How long a rank may wait, in seconds.

    load_s: for the others to start and to load their share.
    step_s: for one collective of a step, on CPU. cuda_step_s: for a whole step, on CUDA.
    plan_s: for the next plan. Rank 0 sends an empty one every `idle_plan_s` when it has no work.

    A rank that died is noticed by its connections, one that was stopped by `standstill`, both
    within seconds. These are for ranks that a busy machine lets wait, and must not end them.
    """

    load_s: float = 900.0
    step_s: float = 60.0
    cuda_step_s: float = 60.0
    plan_s: float = 60.0
    idle_plan_s: float = 1.0


@dataclass(frozen=True)
class RankSpec:
    """What all ranks of one model must build alike."""

    model: ModelConfig
    cache: CacheConfig
    max_num_tokens: int
    max_num_logit_rows: int
    deadlines: Deadlines = Deadlines()

    @property
    def size(self) -> int:
        return self.model.tensor_parallel_size


class PlanKind(enum.IntEnum):
    """What rank 0 tells the others to do."""

    STEP = 0
    IDLE = 1
    SHUTDOWN = 2


class RankGroup:
    """One rank's place in the group: the plans it gets or sends, and the end of it all."""

    def __init__(self, rank: int, spec: RankSpec, device: torch.device) -> None:
        self.rank = rank
        self.device = device
        self.num_blocks = 0
        self._deadlines = spec.deadlines
        load = timedelta(seconds=spec.deadlines.load_s)
        self._plans = dist.new_group(backend="gloo", timeout=load)

    def build_runner(self, spec: RankSpec) -> ModelRunner:
        """Load this rank's share, and agree on the blocks that every pool has (`num_blocks`).
        Returns on all ranks at about the same time, with the short deadlines in force."""
        runner = ModelRunner.build(
            spec.model,
            spec.cache,
            max_num_tokens=spec.max_num_tokens,
            max_num_logit_rows=spec.max_num_logit_rows,
            tp_size=spec.size,
            rank=self.rank,
        )
        self.num_blocks = self._smallest(runner.num_blocks)
        self._plans.set_timeout(timedelta(seconds=self._deadlines.plan_s))
        if self.device.type == "cpu":
            _tensor_group().set_timeout(timedelta(seconds=self._deadlines.step_s))
        return runner

    def send(self, kind: PlanKind, plan: StepPlan | None = None) -> None:
        """Rank 0: tell all others what to do next."""
        numbers = encode_plan(plan) if plan is not None else np.empty(0, dtype=np.int32)
        first = np.zeros(_FIRST_BROADCAST, dtype=np.int32)
        first[:2] = kind, len(numbers)
        head = numbers[: _FIRST_BROADCAST - 2]
        first[2 : 2 + len(head)] = head
        self._broadcast(first)
        if len(head) < len(numbers):
            self._broadcast(np.ascontiguousarray(numbers[len(head) :]))

    def receive(self) -> tuple[PlanKind, StepPlan]:
        """Other ranks: what to do next. Raises RuntimeError once the deadline has passed."""
        first = np.zeros(_FIRST_BROADCAST, dtype=np.int32)
        self._broadcast(first)
        kind, length = PlanKind(int(first[0])), int(first[1])
        if kind is not PlanKind.STEP:
            return kind, StepPlan()
        numbers = first[2 : 2 + length]
        if len(numbers) < length:
            rest = np.zeros(length - len(numbers), dtype=np.int32)
            self._broadcast(rest)
            numbers = np.concatenate([numbers, rest])
        return kind, decode_plan(numbers)

    def run(self, runner: ModelRunner, plan: StepPlan) -> torch.Tensor:
        """All ranks: run the step and wait until it has been computed. Raises RuntimeError where
        another rank does not take part."""
        logits = runner.run(plan)
        if self.device.type == "cuda":
            self._await_device()
        return logits

    def confirm(self) -> None:
        """All ranks: show that this rank is alive, and learn on rank 0 which one is not."""
        deadline = timedelta(seconds=self._deadlines.plan_s)
        dist.monitored_barrier(group=self._plans, timeout=deadline, wait_all_ranks=True)

    def leave(self) -> None:
        """Abort whatever still waits, close every connection, and free the process for another
        group."""
        _tensor_group().abort()
        dist.destroy_process_group()

    def _await_device(self) -> None:
        """On CUDA a collective with a lost rank never ends, and only asking in turns can tell."""
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._deadlines.cuda_step_s
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end of a step in {self._deadlines.cuda_step_s:.0f} s")
            time.sleep(_DEVICE_POLL_S)

    def _smallest(self, number: int) -> int:
        lowest = torch.tensor([number])
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=self._plans)
        return int(lowest.item())

    def _broadcast(self, numbers: NDArray[np.int32]) -> None:
        dist.broadcast(torch.from_numpy(numbers), src=0, group=self._plans)


def listen(host: str, spec: RankSpec) -> TCPStore:
    """Rank 0: the meeting point of the ranks, on a free port of `host` (`store.port`)."""
    listener = socket.create_server((host, 0))
    return TCPStore(
        host,
        listener.getsockname()[1],
        spec.size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=spec.deadlines.load_s),
        # The store owns the descriptor from here on.
        master_listen_fd=listener.detach(),
    )


def init_rank(rank: int, spec: RankSpec, store: TCPStore, local_rank: int) -> RankGroup:
    """Join the group. `local_rank` is the index of this rank's device among those it can see.

    Returns when all ranks have joined.
    """
    device = _device(spec.model, local_rank)
    os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(spec.size)
    if store.host.startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=spec.size,
        timeout=timedelta(seconds=spec.deadlines.load_s),
        device_id=device if device.type == "cuda" else None,
    )
    return RankGroup(rank, spec, device)


def run_worker(rank: int, spec: RankSpec, host: str, port: int, local_rank: int) -> None:
    """The whole life of a rank other than 0. Returns after a shutdown plan.

    Raises UnavailableError when rank 0, or another rank, is gone.
    """
    with _loss_as_unavailable(f"rank {rank} of {spec.size}"):
        store = TCPStore(host, port, spec.size, timeout=timedelta(seconds=60))
        store.set(arrival_key(rank), "here")
        group = init_rank(rank, spec, store, local_rank)
        try:
            worker_loop(group, group.build_runner(spec))
        finally:
            group.leave()


def worker_loop(group: RankGroup, runner: ModelRunner) -> None:
    """Obey rank 0's plans until one says shutdown."""
    while True:
        kind, plan = group.receive()
        if kind is PlanKind.SHUTDOWN:
            return
        if kind is PlanKind.IDLE:
            group.confirm()
        else:
            group.run(runner, plan)


def arrival_key(rank: int) -> str:
    """Where in the store a rank says that it has started."""
    return f"arrived/{rank}"


@contextmanager
def _loss_as_unavailable(who: str) -> Iterator[None]:
    """Collectives report a lost peer as RuntimeError, whatever the cause."""
    try:
        yield
    except RuntimeError as error:
        raise UnavailableError(f"{who} lost its group: {error}") from error


def _tensor_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "torch.distributed is not initialised"
    return group


def _device(model: ModelConfig, local_rank: int) -> torch.device:
    on_cuda = model.device == "cuda" or (model.device == "auto" and torch.cuda.is_available())
    if not on_cuda:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
