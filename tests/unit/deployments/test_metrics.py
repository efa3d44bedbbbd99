"""The text of a scrape, from hand-made readings of replicas."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from deployments.metrics import exposition
from deployments.target import TargetDescription
from specdec.engine.counters import EngineCounters, EngineStats


def described(replica: str, controller: dict[str, float | str]) -> TargetDescription:
    stats = EngineStats(EngineCounters(), 0, 0, 0, 0, 0, 0.0, controller)
    return TargetDescription(replica, 4096, 32000, 8, ("draft",), stats, None, {})


def test_what_a_controller_says_is_a_gauge_meaned_over_the_replicas_that_say_it():
    replicas = [
        described("one", {"drift_alarm_draft": 1.0, "acceptance_drift_draft": -0.3, "phase": "on"}),
        described("two", {"drift_alarm_draft": 0.0, "acceptance_drift_draft": -0.1}),
        described("three", {}),  # still learns its reference
    ]
    text = exposition("demo", replicas).decode()
    values = {
        family.name: family.samples[0].value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("specdec_controller_")
    }
    assert values == {
        "specdec_controller_drift_alarm_draft": 0.5,
        "specdec_controller_acceptance_drift_draft": -0.2,
    }
