"""Serve's way to our scaling rules: one policy for the application, since drafts are scaled by what
targets report of them.

The replicas record readings (`record_autoscaling_stats`), Serve averages them over
`look_back_period_s`; `specdec.speculation.scaling` says how many replicas that calls for. Traffic
on our own gRPC port is invisible to Serve's request counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from ray.serve._private.common import DeploymentID
from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingContext

from specdec.speculation.scaling import (
    DraftReading,
    TargetReading,
    wanted_drafts,
    wanted_targets,
)

if TYPE_CHECKING:  # this module travels to Serve's controller, which needs no more of us
    from deployments.settings import RankResources

# What the price of a GPU-hour buys, about.
CPUS_PER_GPU = 64

Reading = TypeVar("Reading", DraftReading, TargetReading)
Decisions = dict[DeploymentID, int | float]


def policy(
    contexts: Mapping[DeploymentID, AutoscalingContext],
) -> tuple[Decisions, dict[DeploymentID, dict[str, Any]]]:
    """Replicas for each deployment that has an `autoscaling_config`. Bounds and delays are applied
    by Serve. Deployments other than target and draft keep Serve's own rule."""
    by_name = {context.deployment_name: context for context in contexts.values()}
    target = by_name.get("Target")
    targets = _readings(target, TargetReading) if target is not None else []
    wanted: Decisions = {}
    for name, context in contexts.items():
        running, current = context.current_num_replicas, context.target_num_replicas
        if context is target:
            wanted[name] = wanted_targets(targets, running, current)
        elif context.deployment_name == "Draft":
            num_targets = target.current_num_replicas if target is not None else 0
            drafts = _readings(context, DraftReading)
            wanted[name] = wanted_drafts(drafts, targets, running, num_targets, current)
        else:
            wanted[name], _ = replica_queue_length_autoscaling_policy(context)
    return wanted, {}


def replica_cost(resources: RankResources, num_ranks: int) -> float:
    """Of a replica of so many ranks, in GPUs."""
    return num_ranks * (resources.num_gpus + resources.num_cpus / CPUS_PER_GPU)


def _readings(context: AutoscalingContext, kind: type[Reading]) -> list[Reading]:
    """Of the replicas that reported all that belongs to a reading."""
    metrics = context.aggregated_metrics or {}
    columns = [metrics.get(field.name, {}) for field in fields(kind)]
    replicas = [replica for replica in columns[0] if all(replica in each for each in columns)]
    return [kind(*(column[replica] for column in columns)) for replica in replicas]
