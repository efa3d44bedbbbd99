"""Serve's way to the scaling rules: contexts in, replicas for each deployment out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
import yaml
from ray.serve.autoscaling_policy import _apply_delay_logic
from ray.serve.config import AutoscalingConfig

from deployments.autoscaling import CPUS_PER_GPU, policy, replica_cost
from deployments.settings import RankResources
from specdec.simulation.service.scaling import Delay, Delays, Scaling
from specdec.speculation.scaling import DraftReading, TargetReading
from tests.conftest import REPOSITORY

CONFIGS = [
    *(REPOSITORY / "deployments" / "configs").glob("gpu-*.yaml"),
    *(REPOSITORY / "k8s" / "overlays").glob("h100-*/serve-config.yaml"),
]
BUSY_TARGET = TargetReading(
    usage=0.5, num_running=10, num_waiting=0, gain=2.0, price=0.5, waited=0.2, cost=4.0
)


@dataclass
class Config:
    """What Serve's own rule reads of a deployment's config."""

    def get_target_ongoing_requests(self) -> float:
        return 2.0


@dataclass
class Context:
    """What a policy reads of Serve's AutoscalingContext."""

    deployment_name: str
    current_num_replicas: int
    target_num_replicas: int
    aggregated_metrics: dict[str, dict[str, float]] | None
    total_num_requests: float = 0.0
    policy_state: dict[str, Any] = field(default_factory=dict)
    config: Config = field(default_factory=Config)


def context(name: str, readings: list[Any], running: int | None = None, current: int | None = None):
    """As Serve averages what replicas record: name to replica to value."""
    metrics: dict[str, dict[str, float]] = {"ongoing_requests": {}}
    for number, reading in enumerate(readings):
        for key, value in asdict(reading).items():
            metrics.setdefault(key, {})[f"{name}-{number}"] = value
    running = len(readings) if running is None else running
    return Context(name, running, running if current is None else current, metrics)


def wanted(*contexts: Context) -> dict[str, int]:
    decisions, state = policy({each.deployment_name: each for each in contexts})
    assert state == {}
    return decisions


def test_drafts_are_scaled_by_what_targets_report():
    target = context("Target", [BUSY_TARGET] * 2)
    draft = context("Draft", [DraftReading(1.0, 1.0)] * 2)
    assert wanted(target, draft) == {"Target": 2, "Draft": 3}
    off = context("Target", [BUSY_TARGET.__class__(**(asdict(BUSY_TARGET) | {"gain": 1.0}))] * 2)
    # Nothing gained, and 0.4 target-seconds lost a second, of four GPUs each: 1.6 drafts.
    assert wanted(off, draft)["Draft"] == 2


def test_a_target_of_a_fixed_number_leaves_drafts_to_their_load():
    assert wanted(context("Draft", [DraftReading(1.0, 1.0)] * 2)) == {"Draft": 3}


def test_replicas_that_start_are_not_wanted_twice():
    waiting = TargetReading(**(asdict(BUSY_TARGET) | {"num_waiting": 30.0}))
    assert wanted(context("Target", [waiting], current=3)) == {"Target": 3}


@pytest.mark.parametrize("metrics", [None, {}, {"busy_fraction": {"one": 1.0}}])
def test_nothing_recorded_means_as_before(metrics):
    draft = Context("Draft", 2, 3, metrics)
    target = Context("Target", 1, 2, metrics)
    assert wanted(target, draft) == {"Target": 2, "Draft": 3}


def test_a_replica_that_reported_in_part_does_not_count():
    draft = context("Draft", [DraftReading(0.1, 1.0), DraftReading(1.0, 1.0)])
    del draft.aggregated_metrics["cost"]["Draft-0"]
    assert wanted(draft) == {"Draft": 3}


def test_other_deployments_keep_serves_own_rule():
    gateway = Context("Gateway", 2, 2, {}, total_num_requests=9.0)
    assert wanted(gateway) == {"Gateway": 4.5}


def test_the_simulator_delays_as_serve_does():
    random = np.random.default_rng(0)
    config = AutoscalingConfig(
        min_replicas=0, max_replicas=9, upscale_delay_s=3, downscale_delay_s=7
    )
    delay, state = Delay(Delays(3.0, 7.0)), {}
    ours = theirs = 4
    seen = set()
    wanted_now = 4
    for second in range(2000):
        if random.random() < 0.2:
            wanted_now = int(random.integers(1, 9))
        ours = delay.decide(wanted_now, ours, float(second))
        theirs, state = _apply_delay_logic(wanted_now, theirs, config, state, float(second))
        assert ours == theirs, second
        seen.add(ours)
    assert len(seen) > 4


def test_the_simulator_has_the_delays_of_the_shipped_configs():
    defaults = Scaling(1, 1)
    for config in CONFIGS:
        (application,) = yaml.safe_load(config.read_text("utf-8"))["applications"]
        options = {each["name"]: each for each in application["deployments"]}
        for name, delays in (("Target", defaults.target_delays), ("Draft", defaults.draft_delays)):
            scaling = options[name]["autoscaling_config"]
            assert Delays(scaling["upscale_delay_s"], scaling["downscale_delay_s"]) == delays


def test_what_replicas_cost():
    assert replica_cost(RankResources(num_cpus=0, num_gpus=1), 4) == 4.0
    assert replica_cost(RankResources(num_cpus=CPUS_PER_GPU, num_gpus=0), 1) == 1.0
