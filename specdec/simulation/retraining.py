"""Whether to retrain a drafter whose acceptance has dropped: GPU-hours lost per day against once.

One verdict per drafter, over all of its classes, since retraining mends them together. It assumes
that a retrained drafter accepts as much as the old one did at first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.simulation.drift_cost import ClassDrift, Status

# These learn from the request's own text: nothing to train.
UNTRAINED = ("ngram",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about one drafter. `gpu_hours_per_day` and `payback_days` are (least, most);
    infinite days never pay back."""

    drafter: str
    status: Status
    gpu_hours_per_day: tuple[float, float] | None
    payback_days: tuple[float, float] | None
    text: str


def verdict(
    drafter: str, drifts: Sequence[ClassDrift], retrain_gpu_hours: float | None, horizon_days: float
) -> Verdict:
    """Weigh the drifts of one drafter's classes. Retraining pays where it is earned back within
    `horizon_days`."""
    dropped = [drift for drift in drifts if drift.status is Status.DROPPED]
    if not dropped:
        status = _best_known(drifts)
        return Verdict(drafter, status, None, None, _nothing(status))
    least = math.fsum(d.at_least.gpu_hours for d in dropped if d.at_least)
    most = math.fsum(
        max(d.at_least.gpu_hours, d.at_most.gpu_hours) for d in dropped if d.at_least and d.at_most
    )
    payback = None
    if retrain_gpu_hours is not None and drafter not in UNTRAINED:
        payback = _days(retrain_gpu_hours, most), _days(retrain_gpu_hours, least)
    text = _text(drafter, payback, horizon_days)
    return Verdict(drafter, Status.DROPPED, (least, most), payback, text)


def _best_known(drifts: Sequence[ClassDrift]) -> Status:
    statuses = {drift.status for drift in drifts}
    known = [status for status in (Status.ROSE, Status.STEADY) if status in statuses]
    return known[0] if known else Status.TOO_FEW_DATA


def _nothing(status: Status) -> str:
    if status is Status.TOO_FEW_DATA:
        return "too few data: nothing can be said yet"
    if status is Status.ROSE:
        return "acceptance rose: nothing to do"
    return "no drift: nothing to do"


def _days(gpu_hours: float, gpu_hours_per_day: float) -> float:
    if gpu_hours == 0:
        return 0.0
    return gpu_hours / gpu_hours_per_day if gpu_hours_per_day > 0 else math.inf


def _text(drafter: str, payback: tuple[float, float] | None, horizon_days: float) -> str:
    if drafter in UNTRAINED:
        return "acceptance dropped: the traffic has changed; this drafter has nothing to retrain"
    if payback is None:
        return (
            "acceptance dropped: --retrain-gpu-hours H would tell after how many days retraining "
            "pays back"
        )
    soonest, latest = payback
    if latest <= horizon_days:
        return f"retrain: it pays back within {horizon_days:g} days"
    if soonest > horizon_days:
        return f"do not retrain: it does not pay back within {horizon_days:g} days"
    return (
        f"open: it may or may not pay back within {horizon_days:g} days, depending on the K that a "
        "better draft would get"
    )
