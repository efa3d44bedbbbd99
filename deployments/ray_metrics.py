"""A target replica's counters and gauges through Ray's own exporter, as ray_specdec_*.

For setups that scrape Ray alone. Ray adds the replica and its deployment as labels. Histograms stay
with the gateway's /metrics: Ray takes single values, and the engine keeps none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ray.serve.metrics import Counter, Gauge

from deployments.metric_names import FAMILIES
from deployments.readings import counters_of, gauges_of
from deployments.samples import Key, Samples

if TYPE_CHECKING:  # it publishes its readings itself
    from deployments.target import TargetDescription

logger = logging.getLogger(__name__)

PERIOD_S = 5.0


class RayMetrics:
    """Publishes readings; `publish` may be called as often as one likes."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._published: Samples = {}

    def publish(self, described: TargetDescription) -> None:
        """Counters grow by what came since the last time; gauges are set."""
        for key, value in counters_of(described).items():
            grown = value - self._published.get(key, 0)
            if FAMILIES[key.family].kind == "counter" and grown > 0:
                self._counter(key).inc(grown, tags=self._tags(key))
                self._published[key] = value
        for key, value in gauges_of(described).items():
            self._gauge(key).set(value, tags=self._tags(key))

    async def run(self, describe: Callable[[], TargetDescription]) -> None:
        """Publish until cancelled. A failure is logged and costs one period."""
        while True:
            try:
                self.publish(describe())
            except Exception:
                logger.exception("could not publish metrics through Ray")
            await asyncio.sleep(PERIOD_S)

    def _tags(self, key: Key) -> dict[str, str]:
        return {"model_name": self._model, **dict(key.labels)}

    def _counter(self, key: Key) -> Counter:
        if key.family not in self._counters:
            self._counters[key.family] = Counter(*self._declared(key))
        return self._counters[key.family]

    def _gauge(self, key: Key) -> Gauge:
        if key.family not in self._gauges:
            self._gauges[key.family] = Gauge(*self._declared(key))
        return self._gauges[key.family]

    def _declared(self, key: Key) -> tuple[str, str, tuple[str, ...]]:
        return key.family, FAMILIES[key.family].text, tuple(self._tags(key))
