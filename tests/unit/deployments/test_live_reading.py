"""What /live tells, from hand-made readings of replicas."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise

import pytest

from deployments.auth import partition_of, traffic_class_of
from deployments.fleet_ledger import FleetLedger
from deployments.fleet_reader import FleetReading
from deployments.live_reading import live_reading
from deployments.readings import class_counters_of, counters_of
from deployments.target import TargetDescription
from specdec.engine.class_counters import MAX_CLASSES, ClassCounts
from specdec.engine.counters import EngineCounters, EngineStats
from specdec.engine.histogram import LATENCY_EDGES
from specdec.rpc.draft_member import MemberState
from specdec.speculation.messages import Heartbeat
from tests.exported_metrics import busy_target


def described(replica="one", controller=None, counters=None, loads=None, links=None, **state):
    stats = EngineStats(
        counters=counters or EngineCounters(),
        num_running=state.get("running", 0),
        num_waiting=state.get("waiting", 0),
        num_preemptions=0,
        num_prefix_cache_queries=0,
        num_prefix_cache_hits=0,
        kv_usage=state.get("kv_usage", 0.0),
        controller=controller or {},
    )
    return TargetDescription(
        replica, 4096, 32000, 8, ("draft",), stats, None, loads or {}, links or {}
    )


def live(*targets: TargetDescription, ledger: FleetLedger | None = None) -> dict:
    """As a client reads it: strict JSON, there and back."""
    ledger = ledger or FleetLedger()
    ledger.merge({each.replica_id: counters_of(each) | class_counters_of(each) for each in targets})
    value = live_reading("demo", "1.2", FleetReading(12.5, list(targets), ledger.totals()))
    return json.loads(json.dumps(value, allow_nan=False))


def test_it_says_which_model_when_and_how_much():
    counters = EngineCounters(num_requests=2, num_prompt_tokens=30, num_steps=9)
    counters.num_generation_tokens = 17
    counters.record_verify(0, 0, 1)
    counters.record_verify(3, 2, 3)
    counters.record_verify(3, 0, 1)
    told = live(described(counters=counters, controller={"baseline_s": 3.0, "speculating_s": 2.0}))
    assert (told["time_s"], told["model"], told["version"]) == (12.5, "demo", "1.2")
    assert told["totals"] == {
        "requests": 2,
        "prompt_tokens": 30,
        "generation_tokens": 17,
        "steps": 9,
        "drafts": 2,
        "draft_tokens": 6,
        "accepted_tokens": 2,
        "emitted_accepted_tokens": 2,
        "baseline_s": 3.0,
        "speculating_s": 2.0,
        "accepted_per_position": [1, 1, 0],
        "steps_by_k": {"0": 1, "3": 2},
        "guard_trips": {},
    }


def test_totals_of_replicas_add_up_and_stay_when_one_is_gone():
    ledger = FleetLedger()
    one, two = (EngineCounters(num_steps=steps) for steps in (10, 5))
    for counters, k in ((one, 2), (two, 4)):
        counters.record_verify(k, 1, 2)
    assert live(described("a", counters=one), described("b", counters=two), ledger=ledger)
    told = live(described("b", counters=two), ledger=ledger)["totals"]
    assert told["steps"] == 15
    assert told["accepted_per_position"] == [2, 0, 0, 0]
    assert told["steps_by_k"] == {"2": 1, "4": 1}


def test_latencies_are_counted_by_bucket():
    """Against a count of the values themselves."""
    values = (0.0005, 0.001, 0.9, 1.0, 10_000.0)
    counters = EngineCounters()
    for seconds in values:
        counters.time_to_first_token.observe(seconds)
    told = live(described("a", counters=counters), described("b", counters=counters))["latency"]
    first = told["time_to_first_token"]
    assert first["edges_s"] == list(LATENCY_EDGES)
    below = [0.0, *LATENCY_EDGES, math.inf]
    assert first["counts"] == [
        2 * sum(low < value <= high for value in values) for low, high in pairwise(below)
    ]
    assert first["count"] == 2 * len(values)
    assert first["total_s"] == pytest.approx(2 * sum(values))
    assert told["inter_token_latency"]["counts"] == [0] * (len(LATENCY_EDGES) + 1)
    assert set(told) == {"time_to_first_token", "time_per_output_token", "inter_token_latency"}


class TestClasses:
    def counted(self, **classes: int) -> EngineCounters:
        counters = EngineCounters()
        for name, k in classes.items():
            counters.record_verify(k, k, k + 1, name)
            counters.classes.of(name).num_generation_tokens += k + 1
        return counters

    def test_each_has_its_totals_over_the_fleet_and_they_stay(self):
        ledger = FleetLedger()
        live(described("a", counters=self.counted(red=2, blue=3)), ledger=ledger)
        told = live(described("b", counters=self.counted(red=4)), ledger=ledger)["classes"]
        names = ("steps", "draft_tokens", "accepted_tokens", "generation_tokens")
        assert told == {
            "blue": dict(zip(names, (1, 3, 3, 4), strict=True)),
            "red": dict(zip(names, (2, 6, 6, 8), strict=True)),
        }

    def test_a_request_without_a_class_is_in_none(self):
        counters = EngineCounters()
        counters.record_verify(2, 1, 2)
        assert counters.steps_by_k == Counter({2: 1})
        assert live(described(counters=counters))["classes"] == {}

    def test_beyond_the_limit_new_ones_share_one_name_and_known_ones_keep_theirs(self):
        counters = self.counted(**{f"tenant-{i}": 1 for i in range(MAX_CLASSES + 5)})
        counters.record_verify(1, 1, 2, "tenant-0")
        assert len(counters.classes) == MAX_CLASSES + 1
        assert counters.classes["other"] == ClassCounts(5, 5, 5, 10)
        assert counters.classes["tenant-0"].num_steps == 2

    @pytest.mark.parametrize(
        ("partition", "expected"),
        [
            (partition_of("", None), "default"),
            (partition_of("", "salt"), "default"),
            (partition_of("acme", "salt"), "acme"),
            ("health", None),
            ("", None),
        ],
    )
    def test_it_is_the_tenant_whatever_the_salt(self, partition, expected):
        assert traffic_class_of(partition) == expected


def test_gauges_follow_the_merge_rules_and_targets_keep_their_own():
    told = live(
        described("a", {"shadow_price": 0.2, "guard_ratio": 1.5, "phase": "on"}, running=2),
        described(
            "b",
            {"shadow_price": 0.4, "guard_ratio": 0.9, "phase": "guard_off", "guard_reason": "slow"},
            running=3,
            waiting=1,
            kv_usage=0.5,
        ),
    )
    assert told["now"]["running"] == 5
    assert told["now"]["waiting"] == 1
    assert told["now"]["kv_usage"] == 0.25
    assert told["now"]["shadow_price"] == pytest.approx(0.3)
    assert told["now"]["guard_ratio"] == 0.9
    assert told["now"]["measured_goodput"] is None
    a, b = told["targets"]
    assert (a["replica_id"], a["phase"], a["guard_reason"], a["running"]) == ("a", "on", None, 2)
    assert (b["phase"], b["guard_reason"], b["guard_ratio"]) == ("guard_off", "slow", 0.9)
    assert b["measured_goodput"] is None


def test_drafters_as_the_controllers_see_them():
    told = live(
        described("a", {"acceptance_first_draft": 0.6, "broken_draft": 0.0}),
        described("b", {"acceptance_first_draft": 0.8, "broken_draft": 1.0, "broken_ngram": 0.0}),
    )["drafters"]
    draft, ngram = told
    assert draft["name"] == "draft"
    assert draft["acceptance_first"] == pytest.approx(0.7)
    assert draft["broken"] is True
    assert ngram["broken"] is False
    assert ngram["acceptance_first"] is ngram["network_p50_s"] is None


def test_a_draft_replica_that_targets_share_is_told_once():
    beat = Heartbeat(1, 0, num_free_blocks=7, idle_fraction=0.25)
    leaving = Heartbeat(1, 0, num_free_blocks=1, idle_fraction=0.5, draining=True)
    told = live(
        described("a", loads={"x": beat}, links={"x": MemberState(2, 0.001)}),
        described("b", loads={"x": beat, "y": leaving}, links={"x": MemberState(3, 0.003)}),
    )["drafts"]
    x, y = told
    assert x == {
        "replica_id": "x",
        "state": "ready",
        "num_sessions": 5,
        "free_blocks": 7,
        "busy_ratio": 0.75,
        "round_trip_s": pytest.approx(0.002),
    }
    assert (y["state"], y["num_sessions"], y["round_trip_s"]) == ("draining", None, None)


def test_a_fleet_without_targets_can_be_told():
    told = live()
    assert told["targets"] == told["drafters"] == told["drafts"] == []
    assert told["totals"]["requests"] == 0
    assert told["now"]["running"] == 0
    assert told["now"]["depth"] is None


def test_what_is_no_finite_number_is_null():
    told = live(
        described(
            "a",
            {"guard_ratio": math.inf, "shadow_price": math.nan, "network_p50_s_draft": math.nan},
        )
    )
    assert told["now"]["guard_ratio"] is told["now"]["shadow_price"] is None
    assert told["targets"][0]["guard_ratio"] is None
    assert told["drafters"][0]["network_p50_s"] is None


def test_nothing_of_a_busy_target_is_left_unknown():
    told = live(busy_target())
    assert None not in told["now"].values()
    assert told["totals"]["guard_trips"] == {"slower_than_baseline": 0, "first_tokens_later": 0}
    (drafter,) = told["drafters"]
    assert drafter["acceptance_first"] is not None
    assert drafter["network_p95_s"] is not None
