"""What a target hands to Ray's exporter, seen from Ray's side of the call."""

from __future__ import annotations

import asyncio
from collections import Counter as Totals

import pytest

from deployments import ray_metrics
from deployments.metric_names import FAMILIES
from deployments.ray_metrics import RayMetrics
from tests.exported_metrics import busy_target, exported_labels


class Recorder:
    """Stands in for a metric class of Ray: keeps values by name and tags."""

    def __init__(self) -> None:
        self.values: Totals[tuple[str, frozenset]] = Totals()
        self.declared: dict[str, tuple[str, ...]] = {}

    def __call__(self, name: str, description: str, tag_keys: tuple[str, ...]):
        assert name not in self.declared, "declared twice"
        self.declared[name] = tag_keys
        recorder = self

        class Metric:
            def inc(self, value, tags):
                assert value > 0
                recorder.values[name, frozenset(tags.items())] += value

            def set(self, value, tags):
                recorder.values[name, frozenset(tags.items())] = value

        return Metric()


@pytest.fixture
def recorders(monkeypatch):
    counters, gauges = Recorder(), Recorder()
    monkeypatch.setattr(ray_metrics, "Counter", counters)
    monkeypatch.setattr(ray_metrics, "Gauge", gauges)
    return counters, gauges


def test_counters_grow_by_what_came_and_gauges_are_set(recorders):
    counters, gauges = recorders
    metrics, target = RayMetrics("demo"), busy_target()
    for tokens, running in ((10, 2), (10, 1), (25, 0)):
        target.stats.counters.num_generation_tokens = tokens
        target.stats.num_running = running
        metrics.publish(target)
        model = frozenset({("model_name", "demo")})
        assert counters.values["specdec_generation_tokens", model] == tokens
        assert gauges.values["specdec_requests_running", model] == running


def test_names_are_those_of_the_scrape_with_their_labels_and_no_histogram(recorders):
    counters, gauges = recorders
    RayMetrics("demo").publish(busy_target())
    for name, tag_keys in counters.declared.items():
        assert FAMILIES[name].kind == "counter"  # Ray adds _total
        assert set(tag_keys) == exported_labels()[f"{name}_total"]
    for name, tag_keys in gauges.declared.items():
        assert FAMILIES[name].kind == "gauge"
        assert set(tag_keys) == exported_labels()[name]


async def test_a_reading_that_fails_does_not_end_the_publishing(recorders, monkeypatch):
    monkeypatch.setattr(ray_metrics, "PERIOD_S", 0.0)
    calls = []

    def describe():
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        if len(calls) == 3:
            raise asyncio.CancelledError
        return busy_target()

    with pytest.raises(asyncio.CancelledError):
        await RayMetrics("demo").run(describe)
    assert recorders[0].values
