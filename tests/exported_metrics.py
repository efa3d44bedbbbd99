"""What a fleet exports, for tests that hold rules, dashboards and documents against it."""

from __future__ import annotations

from functools import cache

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

from deployments.metrics import exposition
from deployments.readings import counters_of
from deployments.target import TargetDescription
from specdec.config import SpeculationConfig
from specdec.engine.counters import EngineCounters, EngineStats
from specdec.speculation.controller.controller import GoodputController
from specdec.speculation.controller.interface import (
    BatchState,
    DrafterTiming,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.draft_counters import DraftCounters
from specdec.speculation.messages import Heartbeat

DRAFTER = "draft"


def busy_controller() -> GoodputController:
    """One that has seen a draft propose, with all that a snapshot can tell of it."""
    controller = GoodputController(SpeculationConfig(max_num_speculative_tokens=4))
    for step in range(40):
        state = BatchState([SequenceState(1, 100, 4, None, DRAFTER)], 0, 100, float(step))
        (k,) = controller.plan(state)
        accepted = min(k, step % 4)
        row = SequenceResult(1, DRAFTER, k, k, accepted, accepted + 1, False)
        timing = DrafterTiming(DRAFTER, draft_s=0.002, network_s=0.001, waited_s=0.002)
        controller.observe(
            StepResult(
                *(1 + k, 0, 100, 0.002, 0.01, 0.012, [row], float(step), (timing,)),
                first_tokens_s=(0.1,),
            )
        )
    return controller


def busy_target(replica_id: str = "one") -> TargetDescription:
    """A target replica that has done a bit of everything."""
    counters = EngineCounters(
        num_requests=1, disabled={"draft_unavailable": 1}, finished={"stop": 1}
    )
    counters.record_verify(0, 0, 1)
    counters.record_verify(4, 2, 3)
    counters.draft.observe(DRAFTER, 0.002)
    counters.wire.observe(DRAFTER, 0.001)
    drift = {f"acceptance_drift_{DRAFTER}": -0.2, f"drift_alarm_{DRAFTER}": 1.0}
    log = {"acceptance_log_failures": 0.0}
    controller = {**busy_controller().snapshot(), **drift, **log}
    stats = EngineStats(counters, 0, 0, 0, 0, 0, 0.0, controller)
    link = DraftCounters(faults={"law_ignored": 1}, declines={"kv_full": 1})
    loads = {"draft#1": Heartbeat(1, 0)}
    return TargetDescription(replica_id, 4096, 32000, 4, (DRAFTER,), stats, link, loads)


@cache
def exported_labels() -> dict[str, frozenset[str]]:
    """Sample name to label names, of a scrape of one such target."""
    target = busy_target()
    text = exposition("demo", [target], counters_of(target)).decode()
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """All that an expression reads, inside ranges, functions and both sides of an operator."""
    found: list[promql_parser.VectorSelector] = []

    def keep(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), keep)
    return found
