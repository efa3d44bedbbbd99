"""From what a target replica describes to plain samples: counters and gauges by name and labels.

Knows where each number is found (`metric_names.py` says what it is called), and neither other
replicas nor how samples are written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.utils import floatToGoString

from deployments import metric_names as names
from deployments.samples import Key, Labels, Samples
from specdec.engine.counters import EngineStats
from specdec.engine.histogram import Histogram

if TYPE_CHECKING:  # it publishes its readings itself
    from deployments.target import TargetDescription


def counters_of(described: TargetDescription) -> Samples:
    """Everything of a replica that only grows while it lives."""
    return dict(_counters(described))


def class_counters_of(described: TargetDescription) -> Samples:
    """What a replica counted by class of requests. For /live alone: a metric has no label that
    tells tenants apart."""
    return {
        class_key(name, traffic_class): getattr(counts, f"num_{name}")
        for traffic_class, counts in described.stats.counters.classes.items()
        for name in names.CLASS_COUNTERS
    }


def class_key(name: str, traffic_class: str) -> Key:
    return Key(f"class_{name}", "_total", (("class", traffic_class),))


def gauges_of(described: TargetDescription) -> Samples:
    """What a replica is like now, apart from its drafts, which other targets may share."""
    return dict(_gauges(described))


def _counters(described: TargetDescription) -> Iterator[tuple[Key, float]]:
    yield from _engine_counters(described.stats)
    yield from _histograms(described.stats)
    yield from _controller_counters(described.stats.controller)
    link = described.link
    if link is not None:
        for name in names.LINK_COUNTERS:
            yield _counter(f"draft_{name}", getattr(link, f"num_{name}"))
        for name in names.LINK_COUNTERS_BY:
            for reason, total in getattr(link, name).items():
                yield _counter(f"draft_{name}", total, reason=reason)


def _engine_counters(stats: EngineStats) -> Iterator[tuple[Key, float]]:
    counters = stats.counters
    for name in names.ENGINE_COUNTERS:
        yield _counter(name, getattr(counters, f"num_{name}"))
    emitted = counters.num_emitted_accepted_tokens
    yield _counter("preemptions", stats.num_preemptions)
    yield _counter("prefix_cache_queries", stats.num_prefix_cache_queries)
    yield _counter("prefix_cache_hits", stats.num_prefix_cache_hits)
    yield _counter("wasted_draft_tokens", counters.num_draft_tokens - emitted)
    yield _counter("cut_accepted_tokens", counters.num_accepted_tokens - emitted)
    for position, total in enumerate(counters.accepted_per_position):
        yield _counter(names.PER_POSITION, total, position=str(position))
    for attribute, (name, label, _) in names.ENGINE_COUNTERS_BY.items():
        totals: Samples = {}
        for value, total in getattr(counters, attribute).items():
            # A reason may carry a detail after a colon; labels must stay few.
            key, _ = _counter(name, 0, **{label: str(value).partition(":")[0]})
            totals[key] = totals.get(key, 0) + total
        yield from totals.items()


def _histograms(stats: EngineStats) -> Iterator[tuple[Key, float]]:
    for attribute, (name, _) in names.ENGINE_HISTOGRAMS.items():
        yield from _histogram(name, getattr(stats.counters, attribute), ())
    for attribute, (name, _) in names.HISTOGRAMS_BY_DRAFTER.items():
        for drafter, histogram in getattr(stats.counters, attribute).items():
            yield from _histogram(name, histogram, (("drafter", drafter),))


def _histogram(name: str, histogram: Histogram, labels: Labels) -> Iterator[tuple[Key, float]]:
    family = f"specdec_{name}"
    edges = [*histogram.edges, float("inf")]
    for edge, count in zip(edges, accumulate(histogram.counts), strict=True):
        yield Key(family, "_bucket", (*labels, ("le", floatToGoString(edge)))), count
    yield Key(family, "_sum", labels), histogram.total
    yield Key(family, "_count", labels), histogram.count


def _controller_counters(snapshot: Mapping[str, float | str]) -> Iterator[tuple[Key, float]]:
    for key, value in _numbers(snapshot):
        if key in names.CONTROLLER_COUNTERS:
            yield _counter(names.CONTROLLER_COUNTERS[key][0], value)
        elif found := _split(key, names.CONTROLLER_COUNTERS_BY):
            (name, label, _), rest = names.CONTROLLER_COUNTERS_BY[found[0]], found[1]
            yield _counter(name, value, **{label: rest})


def _gauges(described: TargetDescription) -> Iterator[tuple[Key, float]]:
    stats = described.stats
    yield _gauge("target_replicas", 1)
    yield _gauge("requests_running", stats.num_running)
    yield _gauge("requests_waiting", stats.num_waiting)
    yield _gauge("kv_cache_usage_ratio", stats.kv_usage)
    if described.link is not None:
        yield _gauge("draft_round_trip_seconds", described.link.round_trip_ms / 1000)
    for key, value in _numbers(stats.controller):
        if key in names.CONTROLLER_GAUGES:
            yield _gauge(names.CONTROLLER_GAUGES[key][0], value)
        elif found := _split(key, names.CONTROLLER_GAUGES_BY_DRAFTER):
            name = names.CONTROLLER_GAUGES_BY_DRAFTER[found[0]][0]
            yield _gauge(name, value, drafter=found[1])


def _numbers(snapshot: Mapping[str, float | str]) -> list[tuple[str, float]]:
    return [(key, value) for key, value in snapshot.items() if isinstance(value, (int, float))]


def _split(key: str, prefixes: Mapping[str, object]) -> tuple[str, str] | None:
    """(prefix, rest) of a key that carries a drafter or a reason at its end."""
    for prefix in prefixes:
        if key.startswith(f"{prefix}_"):
            return prefix, key.removeprefix(f"{prefix}_")
    return None


def _counter(name: str, value: float, **labels: str) -> tuple[Key, float]:
    return Key(f"specdec_{name}", "_total", tuple(labels.items())), value


def _gauge(name: str, value: float, **labels: str) -> tuple[Key, float]:
    return Key(f"specdec_{name}", "", tuple(labels.items())), value
