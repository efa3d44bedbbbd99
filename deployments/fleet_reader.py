"""One reading of the fleet: ask the targets, remember what they counted.

All gateway replicas share a ledger through an actor of their deployment; where it is away, a
gateway's own ledger serves, and nobody's reading fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from ray import serve

from deployments.fleet_ledger import LEDGER_ACTOR, FleetLedger
from deployments.readings import class_counters_of, counters_of
from deployments.samples import Samples
from deployments.target import TargetDescription
from deployments.target_client import TargetClient

logger = logging.getLogger(__name__)

SHARED_TIMEOUT_S = 2.0
# Prometheus gives up after 10 s by default, and the exchange may come on top.
SCRAPE_TIMEOUT_S = 5.0
# Those who watch share a reading for this long; a target that hangs is left out of theirs after a
# second, and meanwhile they get the reading before, unless that is too old to be called live.
REUSE_S = 0.5
WATCH_TIMEOUT_S = 1.0
PATIENCE_S = 0.05
MAX_AGE_S = 5.0
# Exchanges grow with the replicas that ever lived, so those who watch cause few of them.
EXCHANGE_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class FleetReading:
    """`time_s`: when the replicas were asked, in seconds since 1970; `described`: what those that
    answered said; `counters`: the whole fleet's, with those of replicas that are gone."""

    time_s: float
    described: list[TargetDescription]
    counters: Samples


class FleetReader:
    """One per gateway replica."""

    def __init__(self, target: TargetClient) -> None:
        self._target = target
        self._ledger = FleetLedger()
        self._shared: Any = None
        self._exchanged_s = float("-inf")
        self._latest: FleetReading | None = None
        self._asked_s = float("-inf")  # for the latest
        self._running: asyncio.Task[FleetReading] | None = None

    async def read(self) -> FleetReading:
        """A reading of one's own, begun now. A replica that does not answer keeps its counters and
        has no part in the gauges."""
        return await self._read(SCRAPE_TIMEOUT_S, exchange_period_s=0.0)

    async def watch(self) -> FleetReading:
        """A reading of the last moments, shared by all who watch: they cost two queries a second,
        and wait for one only as long as nobody minds."""
        latest, age_s = self._latest, time.monotonic() - self._asked_s
        if latest is not None and age_s < REUSE_S:
            return latest
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._read(WATCH_TIMEOUT_S, EXCHANGE_PERIOD_S))
        if latest is not None and age_s < MAX_AGE_S:
            done, _ = await asyncio.wait({self._running}, timeout=PATIENCE_S)
            return done.pop().result() if done else latest
        return await asyncio.shield(self._running)

    async def _read(self, timeout_s: float, exchange_period_s: float) -> FleetReading:
        time_s, asked_s = time.time(), time.monotonic()
        described = await self._target.describe_all(timeout_s)
        known = self._ledger.merge(
            {
                item.replica_id: {**counters_of(item), **class_counters_of(item)}
                for item in described
            }
        )
        if time.monotonic() >= self._exchanged_s + exchange_period_s:
            self._ledger.merge(await self._exchange(known))
            self._exchanged_s = time.monotonic()
        reading = FleetReading(time_s, described, self._ledger.totals())
        if asked_s >= self._asked_s:  # one may overtake another
            self._latest, self._asked_s = reading, asked_s
        return reading

    async def _exchange(self, known: dict[str, Samples]) -> dict[str, Samples]:
        """Tell the shared ledger what is known here and learn what others know."""
        try:
            if self._shared is None:
                self._shared = serve.get_deployment_actor(LEDGER_ACTOR)
            async with asyncio.timeout(SHARED_TIMEOUT_S):
                merged: dict[str, Samples] = await self._shared.merge.remote(known)
                return merged
        except Exception as error:  # it is dead or being replaced: the next reading looks again
            logger.warning("the fleet's ledger is away: %s", error)
            self._shared = None
            return {}
