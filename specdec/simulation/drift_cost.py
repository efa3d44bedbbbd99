"""What a draft's drift costs in GPU time, from saved acceptance statistics.

Compares a class's acceptance then (its detector's reference) and now (the last days), and turns a
drop into steps, seconds and GPU-hours per day. Pure arithmetic; docs/drift.md does it by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from specdec.speculation.controller.acceptance_log import AcceptanceRecord, add_counts, merge
from specdec.speculation.controller.drift import (
    DAY_S,
    Z99,
    DriftDetector,
    DriftSettings,
    RateEstimate,
    student_quantile,
)

MIN_RECENT_BLOCKS = 8


class Status(StrEnum):
    """What became of a class's acceptance."""

    TOO_FEW_DATA = "too few data"
    STEADY = "no drift"
    ROSE = "rose"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Window:
    """What one class did from `start_s` to `end_s`, summed; `total` has the counts. `undrafted`
    rounds of the same label had no draft tokens, of whichever drafter."""

    start_s: float
    end_s: float
    first: RateEstimate
    total: AcceptanceRecord
    undrafted_rounds: int
    undrafted_seconds: float

    @property
    def days(self) -> float:
        return (self.end_s - self.start_s) / DAY_S


@dataclass(frozen=True, slots=True)
class Position:
    """One draft position: steps with a draft token there, over steps, then and now; chance that it
    and all before it are accepted, then and now."""

    share_then: float
    share_now: float
    survival_then: float
    survival_now: float


@dataclass(frozen=True, slots=True)
class DailyCost:
    """GPU time that a drop costs per day, in steps of one sequence.

    Today's steps, with the acceptance of then, would bring `tokens_then` each instead of
    `tokens_now`, so `steps_needed` of the `steps` per day would do.
    """

    tokens_then: float
    tokens_now: float
    steps: float
    seconds_per_step: float
    gpus: int

    @property
    def steps_needed(self) -> float:
        return self.steps * self.tokens_now / self.tokens_then

    @property
    def gpu_hours(self) -> float:
        saved = self.steps - self.steps_needed
        return max(saved, 0.0) * self.seconds_per_step * self.gpus / 3600


@dataclass(frozen=True, slots=True)
class ClassDrift:
    """One class's acceptance then and now. What is not known yet is None."""

    drafter: str
    label: str
    status: Status
    days: float
    then: Window | None = None
    now: Window | None = None
    change: tuple[float, float] | None = None
    changed_s: float | None = None
    num_rises: int = 0
    positions: tuple[Position, ...] = ()
    at_least: DailyCost | None = None
    at_most: DailyCost | None = None


def class_drifts(
    records: Iterable[AcceptanceRecord], settings: DriftSettings, recent_s: float, gpus: int
) -> list[ClassDrift]:
    """Every class of the records, by drafter and label."""
    merged = merge(records)
    keys = {(record.drafter, record.label) for record in merged if record.drafter is not None}
    return [
        _class_drift(merged, str(drafter), label, settings, recent_s, gpus)
        for drafter, label in sorted(keys, key=str)
    ]


def _class_drift(
    merged: Sequence[AcceptanceRecord],
    drafter: str,
    label: str,
    settings: DriftSettings,
    recent_s: float,
    gpus: int,
) -> ClassDrift:
    mine = [r for r in merged if r.label == label and r.drafter in (drafter, None)]
    detector = DriftDetector(settings)
    for record in mine:
        if record.drafter is not None:
            detector.observe(record.start_s, record.trials[0], record.successes[0])
    end_s = max(record.start_s + record.seconds for record in merged)
    drift = ClassDrift(
        drafter=drafter,
        label=label,
        status=Status.TOO_FEW_DATA,
        days=(end_s - mine[0].start_s) / DAY_S,
        changed_s=detector.changed_s,
        num_rises=detector.num_rises,
    )
    start_s, learned_s = detector.reference_start_s, detector.reference_end_s
    if start_s is None or learned_s is None:
        return drift
    before = [r for r in mine if start_s <= r.start_s <= learned_s]
    after = [r for r in mine if r.start_s > learned_s and r.start_s >= end_s - recent_s]
    if not after:
        return drift
    then_end_s = before[-1].start_s + before[-1].seconds
    then = _window(before, start_s, then_end_s, settings.min_trials)
    recent_from_s = end_s - recent_s
    from_s = recent_from_s if recent_from_s > learned_s else after[0].start_s
    now = _window(after, from_s, end_s, settings.min_trials)
    return _compared(replace(drift, then=then, now=now), then, now, gpus)


def _compared(drift: ClassDrift, then: Window, now: Window, gpus: int) -> ClassDrift:
    if now.first.num_blocks < MIN_RECENT_BLOCKS:
        return drift
    change = _difference(then.first, now.first)
    positions = _positions(then.total, now.total)
    drift = replace(drift, status=Status.STEADY, change=change, positions=positions)
    if change[1] < 0:
        at_least, at_most = _costs(then, now, positions, gpus)
        return replace(drift, status=Status.DROPPED, at_least=at_least, at_most=at_most)
    return replace(drift, status=Status.ROSE) if change[0] > 0 else drift


def _window(
    records: Sequence[AcceptanceRecord], start_s: float, end_s: float, min_trials: int
) -> Window:
    drafted = [record for record in records if record.drafter is not None]
    undrafted = [record for record in records if record.drafter is None]
    return Window(
        start_s=start_s,
        end_s=end_s,
        first=_first_position(drafted, min_trials),
        total=_total(drafted),
        undrafted_rounds=sum(record.rounds for record in undrafted),
        undrafted_seconds=math.fsum(record.target_seconds for record in undrafted),
    )


def _first_position(records: Sequence[AcceptanceRecord], min_trials: int) -> RateEstimate:
    """The first position's rate over blocks of at least `min_trials`."""
    estimate, trials, successes = RateEstimate(), 0, 0
    for record in records:
        trials += record.trials[0]
        successes += record.successes[0]
        if trials >= min_trials:
            estimate.add(trials, successes)
            trials = successes = 0
    return estimate


def _total(records: Sequence[AcceptanceRecord]) -> AcceptanceRecord:
    drafted: tuple[int, ...] = ()
    trials: tuple[int, ...] = ()
    successes: tuple[int, ...] = ()
    for record in records:
        drafted = add_counts(drafted, record.drafted)
        trials = add_counts(trials, record.trials)
        successes = add_counts(successes, record.successes)
    return AcceptanceRecord(
        start_s=records[0].start_s if records else 0.0,
        seconds=math.fsum(record.seconds for record in records),
        drafter=records[0].drafter if records else "",
        label=records[0].label if records else "",
        rounds=sum(record.rounds for record in records),
        drafted=drafted,
        trials=trials,
        successes=successes,
        tokens=sum(record.tokens for record in records),
        target_seconds=math.fsum(record.target_seconds for record in records),
    )


def _difference(then: RateEstimate, now: RateEstimate) -> tuple[float, float]:
    """99 % confidence interval of now - then. Not 95: who looks every week would see a drop that is
    none once a year."""
    freedom = min(then.num_blocks, now.num_blocks) - 1
    error = math.hypot(then.standard_error, now.standard_error)
    reach = student_quantile(Z99, freedom) * error
    change = now.rate - then.rate
    return change - reach, change + reach


def _positions(then: AcceptanceRecord, now: AcceptanceRecord) -> tuple[Position, ...]:
    """A position that was tried in one window only is taken not to have changed."""
    survival_then = survival_now = 1.0
    positions = []
    for index in range(max(len(then.trials), len(now.trials))):
        rates = [_rate(then, index), _rate(now, index)]
        known = [rate for rate in rates if rate is not None]
        if not known:
            break
        survival_then *= known[0]
        survival_now *= known[-1]
        positions.append(
            Position(
                share_then=_at(then.drafted, index) / then.rounds,
                share_now=_at(now.drafted, index) / now.rounds,
                survival_then=survival_then,
                survival_now=survival_now,
            )
        )
    return tuple(positions)


def _rate(total: AcceptanceRecord, index: int) -> float | None:
    trials = _at(total.trials, index)
    return total.successes[index] / trials if trials else None


def _at(counts: tuple[int, ...], index: int) -> int:
    return counts[index] if index < len(counts) else 0


def _costs(
    then: Window, now: Window, positions: Sequence[Position], gpus: int
) -> tuple[DailyCost, DailyCost]:
    """At least: today's K, in the steps that still draft. At most: the K of then, as if its
    further draft tokens cost nothing, over all steps of the label."""
    total = now.total
    at_least = DailyCost(
        tokens_then=1 + math.fsum(p.share_now * p.survival_then for p in positions),
        tokens_now=1 + math.fsum(p.share_now * p.survival_now for p in positions),
        steps=total.rounds / now.days,
        seconds_per_step=total.target_seconds / total.rounds,
        gpus=gpus,
    )
    rounds = total.rounds + now.undrafted_rounds
    part_now = total.rounds / rounds
    part_then = then.total.rounds / (then.total.rounds + then.undrafted_rounds)
    shares = [max(p.share_then * part_then, p.share_now * part_now) for p in positions]
    gains = zip(shares, positions, strict=True)
    at_most = DailyCost(
        tokens_then=1 + math.fsum(share * p.survival_then for share, p in gains),
        tokens_now=1 + part_now * (at_least.tokens_now - 1),
        steps=rounds / now.days,
        seconds_per_step=(total.target_seconds + now.undrafted_seconds) / rounds,
        gpus=gpus,
    )
    return at_least, at_most
