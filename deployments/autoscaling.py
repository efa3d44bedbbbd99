"""Scaling rules, apart for target and draft (design section 1: each scales on its own).

Both read what the replicas record (`record_autoscaling_stats`), since traffic on our own gRPC port
is invisible to Serve's request counts.
"""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext

TARGET_BUSY_FRACTION = 0.7
TARGET_QUEUE_PER_REPLICA = 4.0
TARGET_KV_USAGE = 0.8


def draft_policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Enough draft replicas that each is busy at most 70 % of the time.

    A draft is a server with a deadline: past that, proposals come late and are worth nothing.
    """
    busy = _mean(context, "busy_fraction")
    return _bounded(context, context.current_num_replicas * busy / TARGET_BUSY_FRACTION), {}


def target_policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Enough target replicas for both the queue and the KV cache."""
    current = context.current_num_replicas
    by_queue = current * _mean(context, "num_waiting") / TARGET_QUEUE_PER_REPLICA
    by_kv = current * _mean(context, "kv_usage") / TARGET_KV_USAGE
    return _bounded(context, max(by_queue, by_kv)), {}


def _mean(context: AutoscalingContext, name: str) -> float:
    values = list((context.aggregated_metrics or {}).get(name, {}).values())
    return sum(values) / len(values) if values else 0.0


def _bounded(context: AutoscalingContext, wanted: float) -> int:
    low, high = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return max(low, min(high, math.ceil(wanted)))
