"""Readings of a fleet as GET /live tells them, made by the gateway's own code."""

from __future__ import annotations

import json

from deployments.fleet_reader import FleetReading
from deployments.live_reading import live_reading
from deployments.readings import class_counters_of, counters_of
from deployments.samples import Samples
from tests.exported_metrics import busy_target


def reading_of(time_s: float, *targets) -> dict:
    counters: Samples = {}
    for each in targets:
        for key, value in {**counters_of(each), **class_counters_of(each)}.items():
            counters[key] = counters.get(key, 0) + value
    return json.loads(
        json.dumps(live_reading("demo", "1.2", FleetReading(time_s, list(targets), counters)))
    )


def two_readings(seconds: float = 2.0) -> tuple[dict, dict]:
    """Before and after a second of traffic of two classes at one target: 5 decode steps that
    verified 4 draft tokens and accepted 4, 2, 2, 1 and 0 of them, 3 steps without."""
    target = busy_target()
    before = reading_of(100.0, target)
    counters = target.stats.counters
    for accepted in (4, 2, 2, 1, 0):
        counters.record_verify(4, accepted, accepted + 1, "red")
        counters.classes.of("red").num_generation_tokens += accepted + 1
        counters.num_generation_tokens += accepted + 1
    for _ in range(3):
        counters.record_verify(0, 0, 1, "blue")
        counters.classes.of("blue").num_generation_tokens += 1
        counters.num_generation_tokens += 1
    counters.num_requests += 4
    counters.num_steps += 8
    for seconds_taken in (0.02, 0.03, 0.2, 0.22):
        counters.time_to_first_token.observe(seconds_taken)
    return before, reading_of(100.0 + seconds, target)
