"""The text of a scrape, from hand-made readings of replicas."""

from __future__ import annotations

from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments import metric_names as names
from deployments.fleet_ledger import FleetLedger
from deployments.metrics import exposition
from deployments.readings import counters_of, gauges_of
from deployments.target import TargetDescription
from specdec.engine.counters import EngineCounters, EngineStats
from specdec.speculation.messages import Heartbeat
from tests.exported_metrics import busy_controller, busy_target, exported_labels

MAX_SERIES_PER_DRAFTER = 60


def described(
    replica: str,
    controller: dict[str, float | str] | None = None,
    counters: EngineCounters | None = None,
    loads: dict[str, Heartbeat] | None = None,
) -> TargetDescription:
    stats = EngineStats(counters or EngineCounters(), 0, 0, 0, 0, 0, 0.0, controller or {})
    return TargetDescription(replica, 4096, 32000, 8, ("draft",), stats, None, loads or {})


def scraped(targets: list[TargetDescription], ledger: FleetLedger | None = None) -> dict:
    """(sample name, labels but the model's) -> value."""
    ledger = ledger or FleetLedger()
    ledger.merge({target.replica_id: counters_of(target) for target in targets})
    text = exposition("demo", targets, ledger.totals()).decode()
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "demo"
            key = sample.name, tuple(sample.labels.values())
            assert key not in values, "a series stands twice in one scrape"
            values[key] = sample.value
    return values


def test_gauges_of_a_drafter_are_labelled_and_merged_over_the_replicas_that_have_them():
    replicas = [
        described("one", {"drift_alarm_draft": 1.0, "acceptance_drift_draft": -0.3, "phase": "on"}),
        described("two", {"drift_alarm_draft": 0.0, "acceptance_drift_draft": -0.1}),
        described("three", {}),  # still learns its reference
    ]
    values = scraped(replicas)
    assert values["specdec_acceptance_drift_ratio", ("draft",)] == pytest.approx(-0.2)
    assert values["specdec_acceptance_drift_alarm", ("draft",)] == 1  # the worst replica's


def test_goodput_adds_up_and_the_guard_is_that_of_the_worst_replica():
    replicas = [
        described("one", {"measured_goodput": 100.0, "guard_ratio": 1.4}),
        described("two", {"measured_goodput": 50.0, "guard_ratio": 0.9}),
    ]
    values = scraped(replicas)
    assert values["specdec_measured_goodput_tokens_per_second", ()] == 150
    assert values["specdec_controller_guard_ratio", ()] == 0.9


def test_a_draft_that_two_targets_share_counts_once():
    beat = Heartbeat(1, 0, num_free_blocks=7, idle_fraction=0.25)
    leaving = Heartbeat(1, 0, num_free_blocks=1, idle_fraction=0.75, draining=True)
    replicas = [
        described("one", loads={"a": beat}),
        described("two", loads={"a": beat, "b": leaving}),
    ]
    values = scraped(replicas)
    assert values["specdec_draft_replicas", ()] == 2
    assert values["specdec_draft_replicas_draining", ()] == 1
    assert values["specdec_draft_free_blocks", ()] == 8
    assert values["specdec_draft_busy_ratio", ()] == 0.5


def test_a_fleet_without_targets_says_so_with_zeros():
    values = scraped([])
    assert values["specdec_target_replicas", ()] == 0
    assert values["specdec_draft_replicas", ()] == 0


def test_every_number_of_a_controller_is_exported_or_left_out_on_purpose():
    for key, value in busy_controller().snapshot().items():
        if isinstance(value, str) or key in names.CONTROLLER_LEFT_OUT:
            continue
        target = described("one", {key: value})
        bare = described("one")
        new = {**counters_of(target), **gauges_of(target)}.keys() - {
            **counters_of(bare),
            **gauges_of(bare),
        }.keys()
        assert len(new) == 1, key


def test_every_family_that_is_named_can_be_scraped():
    scraped_families = {
        name.removesuffix(suffix)
        for name in exported_labels()
        for suffix in ("_total", "_bucket", "_sum", "_count", "")
    }
    assert set(names.FAMILIES) <= scraped_families


def test_labels_are_few_and_known():
    allowed = {"model_name", "drafter", "reason", "finish_reason", "position", "k", "le"}
    assert set().union(*exported_labels().values()) == allowed


def test_the_aliases_carry_the_same_numbers():
    values = scraped([busy_target()])
    for alias, name in names.VLLM_ALIASES.items():
        same = [(key, v) for key, v in values.items() if key[0] == f"{alias}_total"]
        assert same
        for (_, labels), value in same:
            assert values[f"{name}_total", labels] == value


def test_a_detail_behind_a_reason_is_no_label_of_its_own():
    counters = EngineCounters(disabled={"draft_failed: this": 1, "draft_failed: that": 2})
    values = scraped([described("one", counters=counters)])
    assert values["specdec_speculation_disabled_total", ("draft_failed",)] == 3


class TestLedger:
    def counted(self, replica: str, steps: int) -> TargetDescription:
        return described(replica, counters=EngineCounters(num_steps=steps))

    def test_a_restart_does_not_make_the_fleet_fall(self):
        ledger, steps = FleetLedger(), []
        for alive in ([("a", 10), ("b", 5)], [("b", 7)], [("b", 8), ("c", 1)]):
            values = scraped([self.counted(*each) for each in alive], ledger)
            steps.append(values["specdec_steps_total", ()])
        assert steps == [15, 17, 19]  # a's ten stay; c began at zero

    def test_readings_that_overtake_each_other_do_not_make_it_fall(self):
        ledger = FleetLedger()
        scraped([self.counted("a", 10)], ledger)
        assert scraped([self.counted("a", 9)], ledger)["specdec_steps_total", ()] == 10

    def test_two_gateways_agree_through_a_shared_one_and_fill_it_again(self):
        mine, yours, shared = FleetLedger(), FleetLedger(), FleetLedger()
        reading = {"a": counters_of(self.counted("a", 10))}
        mine.merge(shared.merge(mine.merge(reading)))  # a dies before yours has seen it
        yours.merge(shared.merge(yours.merge({"b": counters_of(self.counted("b", 1))})))
        assert yours.totals() == {**mine.totals(), **shared.totals()}
        replacement = FleetLedger()  # the shared one died
        replacement.merge(yours.merge({}))
        assert replacement.totals() == yours.totals()

    def test_it_forgets_the_oldest_beyond_its_size(self):
        ledger = FleetLedger(max_replicas=2)
        for replica in "abc":
            known = ledger.merge({replica: counters_of(self.counted(replica, 1))})
        assert set(known) == {"b", "c"}


def test_buckets_are_cumulative_and_end_with_all():
    counters = EngineCounters()
    for seconds in (0.0005, 0.001, 0.9, 1.0, 10_000.0):
        counters.time_to_first_token.observe(seconds)
    values = scraped([described("one", counters=counters), described("two", counters=counters)])
    name = "specdec_time_to_first_token_seconds"
    assert values[f"{name}_bucket", ("0.001",)] == 2 * 2  # an edge is inside its bucket
    assert values[f"{name}_bucket", ("0.75",)] == 2 * 2
    assert values[f"{name}_bucket", ("1.0",)] == 2 * 4
    assert values[f"{name}_bucket", ("+Inf",)] == values[f"{name}_count", ()] == 2 * 5
    assert values[f"{name}_sum", ()] == pytest.approx(2 * 10_001.9015)


def test_the_number_of_series_does_not_grow_with_requests():
    one = scraped([busy_target()])
    many = scraped([busy_target(f"replica-{i}") for i in range(3)])
    assert one.keys() == many.keys()
    by_family = defaultdict(int)
    for name, _ in one:
        by_family[name] += 1
    assert max(by_family.values()) <= MAX_SERIES_PER_DRAFTER
