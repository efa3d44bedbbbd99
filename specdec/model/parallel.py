"""The executor of a model that is split over several ranks: rank 0, which lives with the engine.

It sends every plan to the other ranks, runs it itself, and hands out the logits, which are
complete on rank 0. It is told of the other ranks only through `Workers`, so that processes on this
machine (`local_workers.py`) and Ray actors serve alike.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.errors import ConfigError, UnavailableError
from specdec.model.executor import Executor
from specdec.model.loader import load_config
from specdec.model.local_workers import LocalWorkers
from specdec.model.ranks import PlanKind, RankGroup, RankSpec, arrival_key, init_rank, listen
from specdec.model.runner import ModelRunner
from specdec.model.standstill import StandstillWatch, process_cpu_s
from specdec.model.tensor_split import check_tensor_parallel
from specdec.step_plan import StepPlan

__all__ = [
    "TensorParallelExecutor",
    "Workers",
    "build_parallel_executor",
    "other_ranks_cpu_s",
    "rank_spec",
    "spawn_local",
]

_LOOPBACK = "127.0.0.1"
_SHUTDOWN_DEADLINE_S = 5.0
_ARRIVAL_POLL_S = 0.05
# A lost worker is seen by its connections first, and only then by whatever started it.
REAP_S = 0.5

logger = logging.getLogger(__name__)


class Workers(Protocol):
    """The ranks other than 0, as whatever started them sees them."""

    @property
    def pids(self) -> list[int]:
        """Their process ids, of those that were started."""
        ...

    def lost(self, within_s: float = 0.0) -> str | None:
        """Which worker has ended and how, for people; None where none has `within_s` from now."""
        ...

    def end(self, deadline_s: float) -> None:
        """Return when no worker is left: those that have not ended by themselves after
        `deadline_s` are killed. Idempotent."""
        ...


class TensorParallelExecutor:
    """Executor on rank 0. Any failure of a step is the end of the whole group: the ranks would no
    longer be at the same place."""

    def __init__(
        self, group: RankGroup, runner: ModelRunner, workers: Workers, spec: RankSpec
    ) -> None:
        self._group = group
        self._runner: ModelRunner | None = runner
        self._workers = workers
        self._deadlines = spec.deadlines
        self._ended: str | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._last_plan_s = time.monotonic()
        self.vocab_size = runner.vocab_size
        self.model_max_len = runner.model_max_len
        self.block_size = runner.block_size
        self.num_blocks = group.num_blocks
        self.device = runner.device
        self._idle_thread = threading.Thread(
            target=self._keep_workers_waiting, name="specdec-idle-plans", daemon=True
        )
        self._standstill = StandstillWatch(workers.pids)
        self._idle_thread.start()

    @classmethod
    def start(
        cls, spec: RankSpec, store: TCPStore, workers: Workers, local_rank: int = 0
    ) -> TensorParallelExecutor:
        """Join the workers, which were started with the address of `store`, and load the model.

        Raises UnavailableError where a worker fails or does not come, and whatever loading the
        model raises; no worker is left then.
        """
        try:
            _await_arrival(spec, store, workers)
            group = init_rank(0, spec, store, local_rank)
            try:
                runner = group.build_runner(spec)
            except BaseException:
                group.leave()
                raise
        except RuntimeError as error:
            reason = workers.lost(REAP_S) or str(error)
            workers.end(0)
            raise UnavailableError(f"tensor-parallel ranks did not start: {reason}") from error
        except BaseException:
            workers.end(0)
            raise
        return cls(group, runner, workers, spec)

    @property
    def worker_pids(self) -> list[int]:
        return self._workers.pids

    @property
    def failure(self) -> str | None:
        """Why this executor can run nothing more, None while it can. For health checks: the loss
        of a rank is noticed within seconds even when no request comes."""
        return self._ended

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits [len(plan.logit_rows), vocab_size]. Raises UnavailableError, now and from then
        on, where a rank is lost."""
        with self._lock:
            if self._runner is None:
                raise UnavailableError(self._ended or "the executor was shut down")
            try:
                self._group.send(PlanKind.STEP, plan)
                logits = self._group.run(self._runner, plan)
            except Exception as error:
                self._lose(error)
            self._last_plan_s = time.monotonic()
            return logits

    def shutdown(self) -> None:
        """Let every rank end. Idempotent; takes at most a few seconds."""
        self._stopped.set()
        self._standstill.stop()
        with self._lock:
            if self._runner is None:
                return
            self._runner = None
            self._ended = "the executor was shut down"
            try:
                self._group.send(PlanKind.SHUTDOWN)
            except RuntimeError:
                logger.warning("a tensor-parallel rank was lost before shutdown")
            self._workers.end(_SHUTDOWN_DEADLINE_S)
            self._group.leave()
        self._idle_thread.join(_SHUTDOWN_DEADLINE_S)

    def _keep_workers_waiting(self) -> None:
        """Send an idle plan whenever no step was run for a while: a worker that hears nothing
        believes rank 0 dead. Every rank answers it, so that rank 0 learns of a loss, too."""
        interval = self._deadlines.idle_plan_s
        while not self._stopped.wait(self._last_plan_s + interval - time.monotonic()):
            with self._lock:
                if self._runner is None:
                    return
                if time.monotonic() - self._last_plan_s < interval:
                    continue
                try:
                    self._group.send(PlanKind.IDLE)
                    self._group.confirm()
                    self._last_plan_s = time.monotonic()
                except RuntimeError as error:
                    self._end_group(error)

    def _lose(self, error: Exception) -> NoReturn:
        self._end_group(error)
        assert self._ended is not None
        raise UnavailableError(self._ended) from error

    def _end_group(self, error: Exception) -> None:
        """Cut the connections, which ends every rank that still runs, and end those that do not."""
        self._stopped.set()
        self._standstill.stop()
        self._runner = None
        self._ended = f"tensor-parallel group lost: {self._workers.lost(REAP_S) or error}"
        logger.error(self._ended)
        self._group.leave()
        self._workers.end(0)


def other_ranks_cpu_s(executor: Executor) -> float:
    """CPU seconds so far of ranks in other processes: rank 0's step may be waiting for one."""
    if not isinstance(executor, TensorParallelExecutor):
        return 0.0
    return sum(map(process_cpu_s, executor.worker_pids))


def build_parallel_executor(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_num_speculative_tokens: int,
) -> TensorParallelExecutor:
    """Split the model over processes of this machine; `build_executor` describes the arguments."""
    return spawn_local(rank_spec(model, cache, scheduler, max_num_speculative_tokens))


def rank_spec(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_num_speculative_tokens: int,
) -> RankSpec:
    """What every rank is told. Raises ConfigError, naming why, for a model that cannot be split
    into `model.tensor_parallel_size` parts."""
    check_tensor_parallel(load_config(model), model.tensor_parallel_size, model.quantization)
    return RankSpec(
        model=_with_threads(model),
        cache=cache,
        max_num_tokens=scheduler.max_num_batched_tokens,
        max_num_logit_rows=scheduler.max_logit_rows(max_num_speculative_tokens),
    )


def spawn_local(spec: RankSpec) -> TensorParallelExecutor:
    """Rank 0 in this process, the others in processes of their own on this machine, rank r on
    device r. A process can hold one such model at a time."""
    if dist.is_initialized():
        raise ConfigError(
            "this process already holds a tensor-parallel model; start another process for the "
            "second, or give it tensor_parallel_size 1",
            field="tensor_parallel_size",
        )
    store = listen(_LOOPBACK, spec)
    return TensorParallelExecutor.start(spec, store, LocalWorkers(spec, _LOOPBACK, store.port))


def _with_threads(model: ModelConfig) -> ModelConfig:
    """Share the machine's cores out: torch would start as many threads as cores on each rank."""
    if model.num_threads is not None:
        return model
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // model.tensor_parallel_size)
    return model.model_copy(update={"num_threads": share})


def _await_arrival(spec: RankSpec, store: TCPStore, workers: Workers) -> None:
    """Wait until every worker has reached the store. Joining the group would wait as well, but
    would not notice that a worker failed before it came so far."""
    keys = [arrival_key(rank) for rank in range(1, spec.size)]
    deadline = time.monotonic() + spec.deadlines.load_s
    while not store.check(keys):
        if reason := workers.lost():
            raise RuntimeError(reason)
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all {spec.size} ranks came in {spec.deadlines.load_s:.0f} s")
        time.sleep(_ARRIVAL_POLL_S)
