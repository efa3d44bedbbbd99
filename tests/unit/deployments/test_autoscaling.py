"""The scaling rules, from what replicas record to how many there should be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from deployments.autoscaling import draft_policy, target_policy


@dataclass
class Context:
    """What a policy reads of Serve's AutoscalingContext."""

    current_num_replicas: int
    aggregated_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 8


def recorded(name, values):
    return {name: {f"replica-{i}": value for i, value in enumerate(values)}}


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [
        ([0.0], 1),
        ([0.7], 1),
        ([0.71], 2),
        ([0.7, 0.7], 2),
        ([1.0, 1.0], 3),
        ([0.1, 0.1, 0.1, 0.1], 1),
        ([1.0] * 8, 8),
    ],
)
def test_drafts_are_kept_at_seventy_percent(busy, wanted):
    context = Context(len(busy), recorded("busy_fraction", busy))
    assert draft_policy(context) == (wanted, {})


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "wanted"),
    [
        ([0, 0], [0.1, 0.1], 1),
        ([4, 4], [0.1, 0.1], 2),
        ([9, 9], [0.1, 0.1], 5),
        ([0, 0], [0.9, 0.9], 3),
        ([0, 0], [0.8, 0.8], 2),
        ([100, 100], [1.0, 1.0], 8),
    ],
)
def test_targets_follow_the_tighter_of_queue_and_memory(waiting, kv_usage, wanted):
    metrics = recorded("num_waiting", waiting) | recorded("kv_usage", kv_usage)
    assert target_policy(Context(len(waiting), metrics)) == (wanted, {})


@pytest.mark.parametrize("policy", [draft_policy, target_policy])
def test_nothing_recorded_means_the_least(policy):
    assert policy(Context(3, {})) == (1, {})
    assert policy(Context(3, {}, capacity_adjusted_min_replicas=2)) == (2, {})
