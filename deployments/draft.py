"""The draft deployment: a draft engine behind our own gRPC server.

Serve places, scales and restarts it; targets speak to it directly, on its own port. Serve calls
here are control only: `describe` and `lease`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import ray
from ray import serve

from deployments.addresses import address_of, draft_hosts
from deployments.autoscaling import replica_cost
from deployments.draft_traces import DraftTraces
from deployments.logs import join_serve_log
from deployments.ranks import build_rank_executor
from deployments.settings import DraftServerSettings, RankResources, TracingSettings
from deployments.tracing import Tracing, start_tracing
from specdec.config import DraftConfig
from specdec.engine.draft_thread import DraftThread, build_draft_thread
from specdec.errors import UnavailableError
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.remote_proposer import DraftMember
from specdec.speculation.scaling import DraftReading

logger = logging.getLogger(__name__)

LEASE_BEAT_S = 1.0


class Draft:
    """One draft replica."""

    # Serve calls __del__ also where the constructor failed.
    _thread: DraftThread | None = None
    _server: DraftServer | None = None
    _tracing: Tracing | None = None

    async def __init__(
        self,
        config: DraftConfig,
        resources: RankResources,
        server: DraftServerSettings,
        tracing: TracingSettings,
    ) -> None:
        join_serve_log()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._closing = asyncio.Event()
        self._cost = replica_cost(resources, config.draft.tensor_parallel_size)
        self._thread = await asyncio.to_thread(_load, config, resources)
        self._tracing = start_tracing(tracing, "draft", self._replica_id)
        observer = DraftTraces(self._tracing) if self._tracing is not None else None
        self._server = DraftServer(self._thread, observer, max_targets=config.limits.max_targets)
        listens_at, told = draft_hosts(server.host, ray.util.get_node_ip_address())
        port = await self._server.start(address_of(listens_at, server.port))
        self._address = address_of(told, port)
        logger.info("draft %s serves %s at %s", self._replica_id, config.draft.model, self._address)

    def describe(self, target_id: str) -> DraftMember:
        """Who and where this replica is, and what this target has to show it; how busy it is rides
        on their heartbeats. Serve's calls are the trusted way on which tokens travel."""
        info = self._thread.info()
        return DraftMember(
            replica_id=self._replica_id,
            address=self._address,
            incarnation=info.incarnation,
            token=self._server.tokens.issue(target_id),
        )

    async def lease(self, replica_id: str, target_id: str) -> AsyncIterator[str]:
        """Held by a target while it may have sessions here, so that Serve sees the use."""
        if replica_id != self._replica_id:
            raise UnavailableError(f"this is draft {self._replica_id}, not {replica_id}")
        logger.info("leased to target %s", target_id)
        while not self._closing.is_set():
            yield self._replica_id
            await asyncio.sleep(LEASE_BEAT_S)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """One `DraftReading`, which Serve averages."""
        return asdict(DraftReading(1.0 - self._thread.load().idle_fraction, self._cost))

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"draft_address": self._address}

    def check_health(self) -> None:
        """Raises where the draft engine's thread is dead or stuck; Serve then replaces us."""
        self._thread.check_health()

    async def __del__(self) -> None:
        if self._server is not None:
            self._closing.set()
            # Targets that still have sessions here take them elsewhere rather than find them gone.
            await self._server.drain()
            await self._server.stop(grace_s=1.0)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)


def _load(config: DraftConfig, resources: RankResources) -> DraftThread:
    """Load the model over its ranks and run every kernel once; blocks for as long as it takes."""
    executor = build_rank_executor(
        config.draft,
        config.cache,
        config.scheduler,
        config.max_num_speculative_tokens,
        resources,
    )
    thread = build_draft_thread(config, executor)
    thread.warm_up()
    return thread
