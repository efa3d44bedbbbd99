"""Tensor-parallel ranks as Ray actors in the replica's placement group.

The replica is rank 0 and sits in the first bundle; rank r is an actor in bundle r. All bundles are
on one node (STRICT_PACK), which is why a rank that no longer answers Ray can be ended by signal.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import ray
from ray.actor import ActorHandle
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.settings import RankResources
from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.errors import ConfigError, UnavailableError
from specdec.model.executor import Executor, build_executor
from specdec.model.parallel import TensorParallelExecutor, rank_spec
from specdec.model.ranks import RankSpec, listen, run_worker
from specdec.model.standstill import StandstillWatch

START_TIMEOUT_S = 120.0


@ray.remote(max_restarts=0, max_task_retries=0)
class RankWorker:
    """The process of one rank other than 0."""

    def pid(self) -> int:
        return os.getpid()

    def run(self, rank: int, spec: RankSpec, host: str, port: int, leader: int) -> None:
        """The rank's whole life; ends with an error where the group is lost. `leader` is rank 0's
        process: only its peers can tell that it is stopped, and Serve replaces it once it ends."""
        StandstillWatch([leader])
        # Ray shows each actor its own devices only, so that the rank's device is always the first.
        run_worker(rank, spec, host, port, local_rank=0)


class RayWorkers:
    """Ranks 1 to size - 1 (specdec.model.parallel.Workers)."""

    def __init__(self, spec: RankSpec, host: str, port: int, resources: RankResources) -> None:
        group = get_current_placement_group()
        if group is None:
            raise ConfigError("a tensor-parallel replica needs a placement group of its ranks")
        self._actors: list[ActorHandle] = [
            RankWorker.options(
                num_cpus=resources.num_cpus,
                num_gpus=resources.num_gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            ).remote()
            for rank in range(1, spec.size)
        ]
        try:
            self._pids: list[int] = ray.get(
                [actor.pid.remote() for actor in self._actors], timeout=START_TIMEOUT_S
            )
        except ray.exceptions.RayError as error:
            for actor in self._actors:
                ray.kill(actor)
            raise UnavailableError(f"tensor-parallel ranks did not start: {error}") from None
        self._lives: list[ray.ObjectRef] = [
            actor.run.remote(rank, spec, host, port, os.getpid())
            for rank, actor in enumerate(self._actors, start=1)
        ]

    @property
    def pids(self) -> list[int]:
        return self._pids

    def lost(self, within_s: float = 0.0) -> str | None:
        ended, _ = ray.wait(self._lives, num_returns=len(self._lives), timeout=within_s)
        for rank, life in enumerate(self._lives, start=1):
            if life in ended:
                try:
                    ray.get(life)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, UnavailableError):
                        continue  # it ended since another was lost
                    return f"rank {rank} failed: {error.cause}"
                except ray.exceptions.RayError:
                    return f"rank {rank} (process {self._pids[rank - 1]}) died"
        return None

    def end(self, deadline_s: float) -> None:
        if deadline_s > 0:
            ray.wait(self._lives, num_returns=len(self._lives), timeout=deadline_s)
        for actor, pid in zip(self._actors, self._pids, strict=True):
            ray.kill(actor)
            # A stopped process does not hear Ray; and no rank may outlive its replica.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def build_rank_executor(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_num_speculative_tokens: int,
    resources: RankResources,
) -> Executor:
    """The executor of a replica: this process alone, or rank 0 with its Ray workers.

    Raises ConfigError for a model that cannot be served or split as asked.
    """
    if model.tensor_parallel_size == 1:
        return build_executor(model, cache, scheduler, max_num_speculative_tokens)
    spec = rank_spec(model, cache, scheduler, max_num_speculative_tokens)
    host = ray.util.get_node_ip_address()
    store = listen(host, spec)
    return TensorParallelExecutor.start(spec, store, RayWorkers(spec, host, store.port, resources))
