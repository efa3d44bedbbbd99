"""Prometheus text of the whole fleet, made at scrape time from what target replicas describe.

Canonical names are specdec_*; the vllm:spec_decode_* ones are kept beside them, since benchmark
clients read those and Ray's own exporter cannot write a colon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.target import TargetDescription
from specdec.engine.counters import EngineStats
from specdec.speculation.draft_counters import DraftCounters
from specdec.speculation.messages import Heartbeat

COUNTERS = {
    "steps": ("num_steps", "Engine steps."),
    "prompt_tokens": ("num_prompt_tokens", "Prompt tokens of requests that began to answer."),
    "generation_tokens": ("num_generation_tokens", "Output tokens."),
    "drafts": ("num_drafts", "Verify passes over at least one draft token."),
    "draft_tokens": ("num_draft_tokens", "Draft tokens verified."),
    "accepted_tokens": ("num_accepted_tokens", "Draft tokens accepted."),
    "emitted_accepted_tokens": (
        "num_emitted_accepted_tokens",
        "Accepted draft tokens that no stop cut off.",
    ),
}
VLLM_ALIASES = {
    "num_drafts": "num_drafts",
    "num_draft_tokens": "num_draft_tokens",
    "num_accepted_tokens": "num_accepted_tokens",
}
LINK_COUNTERS = ("asks", "hits", "misses", "late", "late_used", "stale", "resyncs", "disconnects")


def exposition(model: str, described: Sequence[TargetDescription]) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry()
    registry.register(_Fleet(model, described))
    return generate_latest(registry)


class _Fleet:
    """A prometheus_client collector over one reading of all target replicas."""

    def __init__(self, model: str, described: Sequence[TargetDescription]) -> None:
        self._model = model
        self._stats = [item.stats for item in described]
        self._links = [item.link for item in described if item.link is not None]
        self._loads = {key: load for item in described for key, load in item.draft_loads.items()}

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("target_replicas", "Target replicas that answered.", len(self._stats))
        for name, (attribute, text) in COUNTERS.items():
            total = sum(getattr(stats.counters, attribute) for stats in self._stats)
            yield self._counter(f"specdec_{name}", text, total)
        for name, attribute in VLLM_ALIASES.items():
            total = sum(getattr(stats.counters, attribute) for stats in self._stats)
            yield self._counter(f"vllm:spec_decode_{name}", f"Same as specdec_{name[4:]}.", total)
        yield from self._by_position()
        yield from self._by_label(self._stats)
        yield from self._state(self._stats)
        yield from self._link_counters(self._links)
        yield from self._draft_state(list(self._loads.values()))

    def _by_position(self) -> Iterator[Metric]:
        totals: Counter[int] = Counter()
        for stats in self._stats:
            totals.update(dict(enumerate(stats.counters.accepted_per_position)))
        names = ("specdec_accepted_tokens_per_pos", "vllm:spec_decode_num_accepted_tokens_per_pos")
        for name in names:
            text = "Draft tokens accepted at each draft position, from 0."
            family = CounterMetricFamily(name, text, labels=["model_name", "position"])
            for position, total in sorted(totals.items()):
                family.add_metric([self._model, str(position)], total)
            yield family

    def _by_label(self, all_stats: Iterable[EngineStats]) -> Iterator[Metric]:
        kinds = {
            "requests_finished": ("finished", "finish_reason", "Requests ended."),
            "speculation_disabled": ("disabled", "reason", "Requests without speculation."),
            "decode_steps_by_k": ("steps_by_k", "k", "Verify passes by draft tokens verified."),
        }
        counters = [stats.counters for stats in all_stats]
        for name, (attribute, label, text) in kinds.items():
            totals: Counter[object] = sum(
                (Counter(getattr(c, attribute)) for c in counters), Counter()
            )
            family = CounterMetricFamily(f"specdec_{name}", text, labels=["model_name", label])
            for value, total in totals.items():
                # A reason may carry a detail after a colon; labels must stay few.
                family.add_metric([self._model, str(value).partition(":")[0]], total)
            yield family

    def _state(self, all_stats: Sequence[EngineStats]) -> Iterator[Metric]:
        count = max(1, len(all_stats))
        running = sum(stats.num_running for stats in all_stats)
        waiting = sum(stats.num_waiting for stats in all_stats)
        queries = sum(stats.num_prefix_cache_queries for stats in all_stats)
        hits = sum(stats.num_prefix_cache_hits for stats in all_stats)
        preemptions = sum(stats.num_preemptions for stats in all_stats)
        usage = sum(stats.kv_usage for stats in all_stats) / count
        yield self._gauge("requests_running", "Sequences in the batch.", running)
        yield self._gauge("requests_waiting", "Sequences in the queue.", waiting)
        yield self._gauge("kv_cache_usage_ratio", "Used share of KV blocks, mean.", usage)
        yield self._counter("specdec_preemptions", "Sequences put back for memory.", preemptions)
        yield self._counter("specdec_prefix_cache_queries", "Prompt tokens looked up.", queries)
        yield self._counter("specdec_prefix_cache_hits", "Prompt tokens found.", hits)
        names = {key for stats in all_stats for key in stats.controller}
        for name in sorted(names):
            values = [v for s in all_stats if isinstance(v := s.controller.get(name), (int, float))]
            if values:
                mean = sum(values) / len(values)
                yield self._gauge(f"controller_{name}", "Controller state, mean.", mean)

    def _link_counters(self, links: Sequence[DraftCounters]) -> Iterator[Metric]:
        for name in LINK_COUNTERS:
            total = sum(getattr(link, f"num_{name}") for link in links)
            yield self._counter(f"specdec_draft_{name}", "See DraftCounters.", total)
        for name in ("faults", "declines"):
            totals: Counter[str] = sum((getattr(link, name) for link in links), Counter())
            family = CounterMetricFamily(
                f"specdec_draft_{name}", "Proposals by reason.", labels=["model_name", "reason"]
            )
            for reason, total in totals.items():
                family.add_metric([self._model, reason], total)
            yield family
        if links:
            mean_ms = sum(link.round_trip_ms for link in links) / len(links)
            yield self._gauge(
                "draft_round_trip_seconds", "Smoothed heartbeat echo.", mean_ms / 1000
            )

    def _draft_state(self, loads: Sequence[Heartbeat]) -> Iterator[Metric]:
        yield self._gauge("draft_replicas", "Draft replicas connected to a target.", len(loads))
        free = sum(load.num_free_blocks for load in loads)
        yield self._gauge("draft_free_blocks", "Free KV blocks of all draft replicas.", free)
        busy = sum(1 - load.idle_fraction for load in loads) / max(1, len(loads))
        yield self._gauge("draft_busy_ratio", "Share of time spent drafting, mean.", busy)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"specdec_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
