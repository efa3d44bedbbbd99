"""Rates of a fleet from two of its readings (GET /live): plain numbers, no terminal and no network.

Totals of a reading only grow, so what happened between two readings is their difference. Where
nothing happened, a ratio is None rather than a number that nobody measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

Reading = Mapping[str, Any]

WINDOW_S = 10.0
MAX_POINTS = 240
LATENCIES = ("time_to_first_token", "time_per_output_token", "inter_token_latency")


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of the `count` values that came in between, None where none did."""

    count: float
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class ClassRates:
    """One class of requests: output tokens per second, draft tokens per decode step, and the share
    of draft tokens that was accepted."""

    generation_tokens_per_s: float
    mean_k: float | None
    acceptance: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a fleet did between two readings that lie `seconds` apart.

    acceptance: accepted of the draft tokens. mean_acceptance_length: 1 + accepted per draft.
    tokens_per_step: output tokens per decode step of a sequence. speed_up: against the
    controllers' estimate of K = 0. acceptance_by_position: of the draft tokens verified at each
    position, those accepted. guard_trips: by reason, those that were.
    """

    seconds: float
    requests_per_s: float
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    draft_tokens_per_s: float
    acceptance: float | None
    mean_acceptance_length: float | None
    tokens_per_step: float | None
    speed_up: float | None
    acceptance_by_position: list[float | None]
    guard_trips: dict[str, float]
    latency: dict[str, Latency]
    classes: dict[str, ClassRates]


@dataclass(slots=True)
class History:
    """The readings of the last WINDOW_S, and how rates went before.

    generation_tokens_per_s, mean_k: a point for each reading, oldest first; the latter by class,
    None where a class took no step.
    """

    readings: deque[Reading] = field(default_factory=deque)
    generation_tokens_per_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    mean_k: dict[str, deque[float | None]] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        """Take in a reading; one that is not newer tells nothing. Where totals have fallen, they
        began anew, and so does the window; so it does where a clock was set back."""
        if self.readings:
            latest = self.readings[-1]
            if 0 <= latest["time_s"] - reading["time_s"] < WINDOW_S:
                return
            if reading["time_s"] < latest["time_s"] or _has_fallen(latest, reading):
                self.readings.clear()
        self.readings.append(reading)
        while len(self.readings) > 2 and reading["time_s"] - self.readings[1]["time_s"] >= WINDOW_S:
            self.readings.popleft()
        if len(self.readings) > 1:
            self._add_point(rates_between(self.readings[-2], reading))

    def rates(self) -> Rates | None:
        """Over the window; None before the second reading."""
        if len(self.readings) < 2:
            return None
        return rates_between(self.readings[0], self.readings[-1])

    def _add_point(self, rates: Rates) -> None:
        self.generation_tokens_per_s.append(rates.generation_tokens_per_s)
        for name, of_class in rates.classes.items():
            self.mean_k.setdefault(name, deque(maxlen=MAX_POINTS)).append(of_class.mean_k)


def rates_between(old: Reading, new: Reading) -> Rates:
    """`new` is the later of two readings of one fleet."""
    seconds = new["time_s"] - old["time_s"]
    before, after = old["totals"], new["totals"]

    def grown(name: str) -> float:
        return float((after[name] or 0) - (before[name] or 0))

    steps_by_k = _grown_by(before["steps_by_k"], after["steps_by_k"])
    accepted, drafted = grown("accepted_tokens"), grown("draft_tokens")
    accepted_length = _ratio(accepted, grown("drafts"))
    return Rates(
        seconds=seconds,
        requests_per_s=grown("requests") / seconds,
        prompt_tokens_per_s=grown("prompt_tokens") / seconds,
        generation_tokens_per_s=grown("generation_tokens") / seconds,
        draft_tokens_per_s=drafted / seconds,
        acceptance=_ratio(accepted, drafted),
        mean_acceptance_length=None if accepted_length is None else 1 + accepted_length,
        tokens_per_step=_ratio(grown("generation_tokens"), sum(steps_by_k.values())),
        speed_up=_ratio(grown("baseline_s"), grown("speculating_s")),
        acceptance_by_position=_by_position(before, after, steps_by_k),
        guard_trips=_grown_by(before["guard_trips"], after["guard_trips"]),
        latency={
            name: latency_between(old["latency"][name], new["latency"][name]) for name in LATENCIES
        },
        classes=_classes(old["classes"], new["classes"], seconds),
    )


def latency_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Latency:
    """Of the values that a histogram took in between."""
    counts = [after - before for before, after in zip(old["counts"], new["counts"], strict=True)]
    edges = new["edges_s"]
    return Latency(sum(counts), quantile(edges, counts, 0.5), quantile(edges, counts, 0.95))


def quantile(edges: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The value below which a share q of the counted values lies, taken as spread evenly within
    each bucket (Prometheus' `histogram_quantile`); above the last edge there is only that edge.

    `counts` has one entry more than `edges`. None where nothing is counted.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank = q * total
    for index, below in enumerate(accumulate(counts[:-1])):
        if below >= rank and counts[index] > 0:
            low = edges[index - 1] if index else 0.0
            share = 1 - (below - rank) / counts[index]
            return low + (edges[index] - low) * share
    return edges[-1]


def _by_position(
    before: Mapping[str, Any], after: Mapping[str, Any], steps_by_k: Mapping[str, float]
) -> list[float | None]:
    """A step that verified k draft tokens tried positions 1 to k."""
    old, new = before["accepted_per_position"], after["accepted_per_position"]
    shares = []
    for position, total in enumerate(new):
        accepted = total - (old[position] if position < len(old) else 0)
        tried = sum(steps for k, steps in steps_by_k.items() if int(k) > position)
        shares.append(_ratio(accepted, tried))
    return shares


def _classes(
    old: Mapping[str, Any], new: Mapping[str, Any], seconds: float
) -> dict[str, ClassRates]:
    return {name: _class_rates(old.get(name, {}), each, seconds) for name, each in new.items()}


def _class_rates(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> ClassRates:
    grown = _grown_by(before, after)
    return ClassRates(
        generation_tokens_per_s=grown["generation_tokens"] / seconds,
        mean_k=_ratio(grown["draft_tokens"], grown["steps"]),
        acceptance=_ratio(grown["accepted_tokens"], grown["draft_tokens"]),
    )


def _grown_by(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: total - before.get(name, 0) for name, total in after.items()}


def _has_fallen(old: Reading, new: Reading) -> bool:
    """As after the end of the application whose gateway is asked. Whatever restarted has at least
    taken fewer steps by then, or it cannot be told from one that goes on."""
    names = ("steps", "requests", "prompt_tokens", "generation_tokens")
    return any(new["totals"][name] < old["totals"][name] for name in names)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
