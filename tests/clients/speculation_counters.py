"""What a service's own /metrics says of speculation, to compare with what its clients report."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Counters:
    """Totals since the service began. Accepted tokens are also counted by draft position from 0."""

    generated: float
    drafts: float
    drafted: float
    accepted: float
    accepted_at: tuple[float, ...]

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.generated - before.generated,
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(
                now - (before.accepted_at[position] if position < len(before.accepted_at) else 0)
                for position, now in enumerate(self.accepted_at)
            ),
        )


def samples(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Sample name to labels and values, of one scrape."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def idle_counters(url: str) -> Counters:
    """The totals once no request runs or waits: what an earlier client left behind has ended."""
    deadline_s = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        scraped = samples(url)
        busy = _total(scraped, "specdec_requests_running") + _total(
            scraped, "specdec_requests_waiting"
        )
        if not busy:
            return _counters(scraped)
        assert time.monotonic() < deadline_s, f"{busy} requests still run or wait"
        time.sleep(0.2)


def _counters(scraped) -> Counters:
    positions = scraped.get("specdec_accepted_tokens_per_pos_total", [])
    at = {int(labels["position"]): value for labels, value in positions}
    return Counters(
        _total(scraped, "specdec_generation_tokens_total"),
        _total(scraped, "specdec_drafts_total"),
        _total(scraped, "specdec_draft_tokens_total"),
        _total(scraped, "specdec_accepted_tokens_total"),
        tuple(at.get(position, 0.0) for position in range(max(at, default=-1) + 1)),
    )


def _total(scraped, name: str) -> float:
    return sum(value for _, value in scraped.get(name, []))
