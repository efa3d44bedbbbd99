"""The target deployment: the engine, its worker ranks, and its view of the draft pool.

One replica is one placement group of tensor-parallel bundles; the replica itself is rank 0. It
owns committed text. The gateway calls `generate`; nothing else reaches the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TypeVar

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.auth import owner_of
from deployments.autoscaling import replica_cost
from deployments.explanations import ReplicaExplanations
from deployments.held_streams import HeldStreams
from deployments.logs import join_serve_log
from deployments.membership import Membership
from deployments.ranks import build_rank_executor
from deployments.ray_metrics import RayMetrics
from deployments.settings import RankResources, TracingSettings
from deployments.target_traces import TargetTraces
from deployments.tracing import Tracing, start_tracing
from specdec.config import EngineConfig
from specdec.engine.async_engine import AsyncEngine
from specdec.engine.builder import build_engine, model_name
from specdec.engine.counters import EngineCounters, EngineStats
from specdec.engine.draft_builder import token_strings
from specdec.engine.engine import Engine
from specdec.engine.request import GenerateRequest
from specdec.engine.warmup import warm_up
from specdec.errors import SpecdecError, UnavailableError
from specdec.model.parallel import TensorParallelExecutor
from specdec.model.tokenizer import load_tokenizer, tokenizer_hash
from specdec.rpc.draft_member import MemberState
from specdec.rpc.remote_proposer import RemoteProposer
from specdec.sequence import SequenceOutput
from specdec.speculation.draft_counters import DraftCounters
from specdec.speculation.handshake import TargetIdentity
from specdec.speculation.messages import Heartbeat
from specdec.speculation.scaling import TargetReading, WaitedShare, speculation_of

logger = logging.getLogger(__name__)

Counters = TypeVar("Counters", EngineCounters, DraftCounters)


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """What a target replica tells of itself: limits for the gateway, numbers for metrics.

    `draft_loads` has the last heartbeat of every connected draft replica, by replica id;
    `draft_links` what this target has to do with it.
    """

    replica_id: str
    max_model_len: int
    vocab_size: int
    max_num_speculative_tokens: int
    drafters: tuple[str, ...]
    stats: EngineStats
    link: DraftCounters | None
    draft_loads: dict[str, Heartbeat]
    draft_links: dict[str, MemberState] = field(default_factory=dict)


class Target:
    """One target replica."""

    # Serve calls __del__ also where the constructor failed.
    _engine: AsyncEngine | None = None
    _membership: Membership | None = None
    _tracing: Tracing | None = None
    _publishing: asyncio.Task[None] | None = None

    async def __init__(
        self,
        config: EngineConfig,
        resources: RankResources,
        draft: DeploymentHandle | None = None,
        tracing: TracingSettings | None = None,
    ) -> None:
        join_serve_log()
        self._config = config
        self._resources = resources
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._remote: RemoteProposer | None = None
        self._explaining = asyncio.Lock()
        self._held = HeldStreams()
        self._waited = WaitedShare()
        self._tracing = start_tracing(tracing or TracingSettings(), "target", self._replica_id)
        self._traces = TargetTraces(self._tracing)
        self._engine = AsyncEngine(await asyncio.to_thread(self._build, draft is not None))
        if draft is not None and self._remote is not None:
            self._membership = Membership(draft, self._replica_id, self._remote.set_members)
            await self._membership.refresh()
            self._membership.start()
        published = RayMetrics(model_name(config.target))
        self._publishing = asyncio.create_task(published.run(self.describe))
        logger.info("target %s serves %s", self._replica_id, config.target.model)

    def _build(self, with_draft: bool) -> Engine:
        """Load, connect and warm up; blocks for as long as the weights take."""
        config = self._config
        executor = build_rank_executor(
            config.target,
            config.cache,
            config.scheduler,
            config.speculation.max_num_speculative_tokens,
            self._resources,
        )
        if with_draft:
            self._remote = RemoteProposer(self._identity(executor.vocab_size))
        engine = build_engine(config, draft_proposer=self._remote, executor=executor)
        warm_up(engine)
        return engine

    def _identity(self, vocab_size: int) -> TargetIdentity:
        tokenizer = load_tokenizer(self._config.target)
        return TargetIdentity(
            target_id=self._replica_id,
            incarnation=time.time_ns(),
            model=self._config.target.model,
            tokenizer_hash=tokenizer_hash(tokenizer),
            vocab_size=vocab_size,
            vocabulary=token_strings(tokenizer),
        )

    async def generate(
        self, request: GenerateRequest, stream_id: str
    ) -> AsyncGenerator[SequenceOutput, None]:
        """One message per engine step, the last with `finish_reason`. Closing it aborts;
        `stream_id` is what `hold` knows it by.

        An error comes as the `error` of a last message: for one that is raised, Serve would log a
        traceback, also where a full queue does just what it should.
        """
        try:
            outputs = self._traces.outputs(request, self._engine.generate)
            async with aclosing(outputs), aclosing(self._held.passed(stream_id, outputs)) as passed:
                async for output in passed:
                    yield output
        except SpecdecError as error:
            yield SequenceOutput(-1, request.request_id, [], finish_reason="error", error=error)

    def hold(self, stream_ids: list[str]) -> int:
        """Send nothing more of these streams, whose reader is behind, until `release`. Returns how
        many outputs those of them that run here have sent."""
        return self._held.hold(stream_ids)

    def release(self, stream_ids: list[str]) -> None:
        """Let held streams go on."""
        self._held.release(stream_ids)

    def describe(self) -> TargetDescription:
        engine, limits = self._engine.engine, self._engine.engine.limits
        stats = engine.stats()
        return TargetDescription(
            replica_id=self._replica_id,
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
            max_num_speculative_tokens=self._config.speculation.max_num_speculative_tokens,
            drafters=self._config.speculation.drafters,
            stats=replace(stats, counters=_reading(stats.counters)),
            link=_reading(self._remote.counters) if self._remote is not None else None,
            draft_loads=self._remote.loads() if self._remote is not None else {},
            draft_links=self._remote.member_states() if self._remote is not None else {},
        )

    async def explain(self, request_id: str, tenant: str) -> ReplicaExplanations:
        """Why a request of this tenant got its K, as far as it ran here and is remembered. In a
        thread of its own: it must neither wait for a step that hangs nor hold up the streams. One
        at a time: it takes milliseconds of the interpreter, which the steps need."""
        async with self._explaining:
            found = await asyncio.to_thread(self._engine.engine.explain, request_id)
        mine = [each for each in found if owner_of(each.partition) == tenant]
        return ReplicaExplanations(self._replica_id, mine)

    def record_routing_stats(self) -> dict[str, float]:
        scheduler = self._engine.engine.scheduler
        return {
            "num_requests": float(scheduler.num_running + scheduler.num_waiting),
            "kv_usage": scheduler.kv_usage,
        }

    def record_autoscaling_stats(self) -> dict[str, float]:
        """One `TargetReading`, which Serve averages."""
        engine = self._engine.engine
        scheduler, stats = engine.scheduler, engine.stats()
        speculation = speculation_of(stats.controller)
        places = scheduler.num_running / scheduler.config.max_num_sequences
        reading = TargetReading(
            usage=max(scheduler.kv_usage, places),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            gain=speculation.gain if scheduler.num_running else 1.0,
            price=speculation.price,
            waited=self._waited.share(stats.counters.step_wait.total),
            cost=replica_cost(self._resources, self._config.target.tensor_parallel_size),
        )
        return asdict(reading)

    def check_health(self) -> None:
        """Raises where the engine has failed, a rank is lost or a step hangs, not where it is short
        of CPU; Serve then replaces the replica."""
        if self._engine.failure is not None:
            # Not the same object again and again: each raise would lengthen its traceback.
            raise UnavailableError(self._engine.failure.message)
        executor = self._engine.engine.executor
        if isinstance(executor, TensorParallelExecutor) and executor.failure is not None:
            raise UnavailableError(executor.failure)
        if not self._engine.is_alive:
            raise UnavailableError("the engine's thread has ended")
        reason = self._engine.standstill()
        if reason is not None:
            raise UnavailableError(reason)

    async def __del__(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
        if self._membership is not None:
            await self._membership.stop()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)


def _reading(counters: Counters) -> Counters:
    """A copy of counters that other threads go on counting with: what is sent must not grow while
    it is being written down."""
    values = {item.name: copy(getattr(counters, item.name)) for item in fields(counters)}
    return replace(counters, **values)
