"""Prometheus text of the whole fleet, made at scrape time from what target replicas describe.

Canonical names are specdec_* (`metric_names.py`); the vllm:spec_decode_* ones are kept beside them,
since benchmark clients read those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from deployments.metric_names import FAMILIES, STATE_GAUGES, VLLM_ALIASES, Merge
from deployments.readings import gauges_of
from deployments.samples import Key, Samples
from deployments.target import TargetDescription
from specdec.speculation.messages import Heartbeat

MERGES: dict[Merge, Callable[[Iterable[float]], float]] = {
    "sum": sum,
    "mean": fmean,
    "min": min,
    "max": max,
}


def exposition(model: str, described: Sequence[TargetDescription], counters: Samples) -> bytes:
    """The text of one scrape; `counters` are those of the fleet's ledger."""
    registry = CollectorRegistry()
    registry.register(_Fleet(model, {**counters, **gauges(described)}))
    return generate_latest(registry)


def gauges(described: Sequence[TargetDescription]) -> Samples:
    """The fleet's, each merged as its family says."""
    values: dict[Key, list[float]] = {Key(f"specdec_{name}"): [] for name in STATE_GAUGES}
    for item in described:
        for key, value in gauges_of(item).items():
            values.setdefault(key, []).append(value)
    loads = {draft: load for item in described for draft, load in item.draft_loads.items()}
    for key, value in _draft_gauges(list(loads.values())):
        values[key].append(value)
    return {key: _merged(FAMILIES[key.family].merge, given) for key, given in values.items()}


def _merged(how: Merge, values: list[float]) -> float:
    return MERGES[how](values) if values else 0.0


def _draft_gauges(loads: Sequence[Heartbeat]) -> Iterator[tuple[Key, float]]:
    """Each draft replica once, however many targets it has."""
    yield Key("specdec_draft_replicas"), len(loads)
    yield Key("specdec_draft_replicas_draining"), sum(load.draining for load in loads)
    yield Key("specdec_draft_free_blocks"), sum(load.num_free_blocks for load in loads)
    for load in loads:
        yield Key("specdec_draft_busy_ratio"), 1 - load.idle_fraction


class _Fleet(Collector):
    """A prometheus_client collector over merged samples."""

    def __init__(self, model: str, samples: Samples) -> None:
        self._model = model
        self._by_family: dict[str, Samples] = {}
        for key, value in samples.items():
            self._by_family.setdefault(key.family, {})[key] = value

    def collect(self) -> Iterable[Metric]:
        for name in FAMILIES:
            if name in self._by_family:
                yield self._metric(name, name, FAMILIES[name].text)
        for alias, name in VLLM_ALIASES.items():
            yield self._metric(alias, name, f"Same as {name}.")

    def _metric(self, name: str, family: str, text: str) -> Metric:
        metric = Metric(name, text, FAMILIES[family].kind)
        for key, value in self._by_family.get(family, {}).items():
            labels = {"model_name": self._model, **dict(key.labels)}
            metric.add_sample(name + key.suffix, labels, value)
        return metric
