"""One scrape of the fleet: ask the targets, remember what they counted, write it down.

All gateway replicas share a ledger through an actor of their deployment; where it is away, a
gateway's own ledger serves, and nobody's scrape fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve

from deployments.fleet_ledger import LEDGER_ACTOR, FleetLedger
from deployments.metrics import exposition
from deployments.readings import Samples, counters_of
from deployments.target_client import TargetClient

logger = logging.getLogger(__name__)

SHARED_TIMEOUT_S = 2.0


class FleetMetrics:
    """One per gateway replica."""

    def __init__(self, target: TargetClient, model: str) -> None:
        self._target = target
        self._model = model
        self._ledger = FleetLedger()
        self._shared: Any = None

    async def text(self) -> bytes:
        """Prometheus text of all target replicas. One that does not answer keeps its counters and
        has no part in the gauges."""
        described = await self._target.describe_all()
        known = self._ledger.merge({item.replica_id: counters_of(item) for item in described})
        self._ledger.merge(await self._exchange(known))
        return exposition(self._model, described, self._ledger.totals())

    async def _exchange(self, known: dict[str, Samples]) -> dict[str, Samples]:
        """Tell the shared ledger what is known here and learn what others know."""
        try:
            if self._shared is None:
                self._shared = serve.get_deployment_actor(LEDGER_ACTOR)
            async with asyncio.timeout(SHARED_TIMEOUT_S):
                merged: dict[str, Samples] = await self._shared.merge.remote(known)
                return merged
        except Exception as error:  # it is dead or being replaced: the next scrape looks again
            logger.warning("the fleet's ledger is away: %s", error)
            self._shared = None
            return {}
