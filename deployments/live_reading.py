"""What /live tells: one reading of the fleet as JSON, for the page and for `specdec top`.

Totals only grow, so that whoever polls takes differences; nothing is kept here. Where a number is
not known it is null; there is neither NaN nor infinity. Names of `totals`, `now` and so on are part
of the interface: docs/metrics.md lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from prometheus_client.utils import floatToGoString

from deployments import metric_names as names
from deployments.fleet_reader import FleetReading
from deployments.metrics import gauges
from deployments.readings import class_key
from deployments.samples import Key, Samples
from deployments.target import TargetDescription
from specdec.engine.histogram import LATENCY_EDGES
from specdec.rpc.draft_member import MemberState

TOTALS = (
    *("requests", "prompt_tokens", "generation_tokens", "steps", "drafts", "draft_tokens"),
    *("accepted_tokens", "emitted_accepted_tokens"),
)
SECONDS = {"baseline_s": "baseline_seconds", "speculating_s": "speculating_seconds"}
LATENCIES = ("time_to_first_token", "time_per_output_token", "inter_token_latency")
STATE = {
    "running": "requests_running",
    "waiting": "requests_waiting",
    "kv_usage": "kv_cache_usage_ratio",
}
CONTROLLER = (
    *("shadow_price", "predicted_goodput", "measured_goodput", "predicted_baseline", "depth"),
    "guard_ratio",
)
OF_A_TARGET = ("shadow_price", "guard_ratio", "measured_goodput")
OF_A_DRAFTER = ("acceptance_first", "delivered", "network_p50_s", "network_p95_s")


def live_reading(model: str, version: str, reading: FleetReading) -> dict[str, Any]:
    """The JSON object of one reading."""
    merged = gauges(reading.described)
    return {
        "time_s": reading.time_s,
        "model": model,
        "version": version,
        "totals": _totals(reading.counters),
        "latency": {name: _latency(name, reading.counters) for name in LATENCIES},
        "classes": _classes(reading.counters),
        "now": _now(merged),
        "targets": [_target(item) for item in reading.described],
        "drafters": _drafters(merged),
        "drafts": _drafts(reading.described),
    }


def _totals(counters: Samples) -> dict[str, Any]:
    def total(name: str) -> float | None:
        return _number(counters.get(Key(f"specdec_{name}", "_total"), 0))

    return {
        **{name: total(name) for name in TOTALS},
        **{name: total(metric) for name, metric in SECONDS.items()},
        "accepted_per_position": _by_position(counters),
        "steps_by_k": _by_label(counters, "decode_steps_by_k"),
        "guard_trips": _by_label(counters, "guard_trips"),
    }


def _by_label(counters: Samples, name: str) -> dict[str, float | None]:
    """Of a family with one label: its value -> total."""
    return {
        key.labels[0][1]: _number(value)
        for key, value in counters.items()
        if key.family == f"specdec_{name}"
    }


def _by_position(counters: Samples) -> list[float | None]:
    by_position = _by_label(counters, names.PER_POSITION)
    return [by_position[str(position)] for position in range(len(by_position))]


def _latency(name: str, counters: Samples) -> dict[str, Any]:
    """Counts of each bucket alone, the last above every edge."""
    family = f"specdec_{names.ENGINE_HISTOGRAMS[name][0]}"
    edges = map(floatToGoString, (*LATENCY_EDGES, math.inf))
    cumulative = [counters.get(Key(family, "_bucket", (("le", edge),)), 0) for edge in edges]
    return {
        "edges_s": LATENCY_EDGES,
        "counts": [above - below for below, above in pairwise([0, *cumulative])],
        "total_s": _number(counters.get(Key(family, "_sum"), 0.0)),
        "count": counters.get(Key(family, "_count"), 0),
    }


def _classes(counters: Samples) -> dict[str, dict[str, float]]:
    found = [key.labels[0][1] for key in counters if key.family == "class_steps"]
    return {
        traffic_class: {
            name: counters[class_key(name, traffic_class)] for name in names.CLASS_COUNTERS
        }
        for traffic_class in sorted(found)
    }


def _now(merged: Samples) -> dict[str, float | None]:
    metrics = {**STATE, **{name: names.CONTROLLER_GAUGES[name][0] for name in CONTROLLER}}
    return {name: _number(merged.get(Key(f"specdec_{m}"))) for name, m in metrics.items()}


def _target(described: TargetDescription) -> dict[str, Any]:
    stats = described.stats
    return {
        "replica_id": described.replica_id,
        "phase": stats.controller.get("phase"),
        "guard_reason": stats.controller.get("guard_reason") or None,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "kv_usage": _number(stats.kv_usage),
        **{name: _number(stats.controller.get(name)) for name in OF_A_TARGET},
    }


def _drafters(merged: Samples) -> list[dict[str, Any]]:
    """As the controllers of all targets see them, merged as in /metrics."""
    by_drafter: dict[str, dict[str, float]] = {}
    metrics = {f"specdec_{item[0]}": n for n, item in names.CONTROLLER_GAUGES_BY_DRAFTER.items()}
    for key, value in merged.items():
        if key.family in metrics:
            by_drafter.setdefault(key.labels[0][1], {})[metrics[key.family]] = value
    return [_drafter(name, values) for name, values in sorted(by_drafter.items())]


def _drafter(name: str, values: Mapping[str, float]) -> dict[str, Any]:
    broken = values.get("broken")
    return {
        "name": name,
        **{key: _number(values.get(key)) for key in OF_A_DRAFTER},
        "broken": None if broken is None else bool(broken),
    }


def _drafts(described: Sequence[TargetDescription]) -> list[dict[str, Any]]:
    """Each draft replica once, however many targets it has."""
    loads = {draft: load for item in described for draft, load in item.draft_loads.items()}
    return [
        {
            "replica_id": draft,
            "state": "draining" if load.draining else "ready",
            "free_blocks": load.num_free_blocks,
            "busy_ratio": _number(1 - load.idle_fraction),
            **_links([i.draft_links[draft] for i in described if draft in i.draft_links]),
        }
        for draft, load in sorted(loads.items())
    ]


def _links(links: Sequence[MemberState]) -> dict[str, Any]:
    """Of one draft replica to its targets."""
    round_trips = [link.round_trip_s for link in links if link.round_trip_s is not None]
    return {
        "num_sessions": sum(link.num_sessions for link in links) if links else None,
        "round_trip_s": _number(fmean(round_trips)) if round_trips else None,
    }


def _number(value: float | str | None) -> float | None:
    """JSON knows no other numbers than finite ones."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
