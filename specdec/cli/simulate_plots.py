"""Pictures of `specdec simulate`: goodput, K and load along the way, and latencies."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

import numpy as np

from specdec.simulation.plots import Line, Panel

if TYPE_CHECKING:
    from specdec.simulation.closed_runs import PolicyRun
    from specdec.simulation.service.report import ServiceRun

SHARES = tuple(range(1, 100))
LONG_S = 7200.0


def closed(runs: SequenceOf[PolicyRun]) -> list[Panel]:
    """Over steps: goodput, mean K, acceptance, and the concurrency that all had."""
    return [
        _over_steps(runs, "Goodput", "Tokens per second", "goodput_tokens_per_s"),
        _over_steps(runs, "K", "Mean draft tokens per sequence", "mean_k"),
        _over_steps(runs, "Acceptance", "Accepted of drafted", "acceptance_rate"),
        _concurrency(runs[0]),
    ]


def _over_steps(runs: SequenceOf[PolicyRun], title: str, label: str, field: str) -> Panel:
    lines = [
        Line(
            run.setting.name,
            _starts(run),
            [getattr(part, field) for _, part in run.parts],
            stepped=True,
        )
        for run in runs
    ]
    return Panel(title, "Step", label, lines)


def _concurrency(run: PolicyRun) -> Panel:
    levels = [float(level) for level, _ in run.parts]
    line = Line("concurrency", _starts(run), levels, stepped=True)
    return Panel("Load", "Step", "Sequences", [line])


def _starts(run: PolicyRun) -> list[float]:
    """The first step of each part."""
    steps = [part.num_steps for _, part in run.parts]
    return [float(step) for step in np.cumsum([0, *steps[:-1]])]


def service(runs: SequenceOf[ServiceRun]) -> list[Panel]:
    """Over time: goodput, mean K, the queue, and replicas where they come and go; and how first
    tokens and tokens are distributed."""
    return [
        _over_time(runs, "Goodput", "Tokens per second", "goodput"),
        _over_time(runs, "K", "Mean draft tokens per sequence", "mean_k"),
        _over_time(runs, "Queue", "Requests waiting per target", "num_queued"),
        *([_replicas(runs)] if runs[0].scaled is not None else []),
        _distribution(runs, "Time to first token", "ttft_s"),
        _distribution(runs, "Time per output token", "tpot_s"),
    ]


def _over_time(runs: SequenceOf[ServiceRun], title: str, label: str, field: str) -> Panel:
    timelines = [run.timeline() for run in runs]
    is_long = any(points and points[-1].time_s > LONG_S for points in timelines)
    unit, seconds = ("h", 3600.0) if is_long else ("s", 1.0)
    lines = [
        Line(
            run.policy,
            [point.time_s / seconds for point in points],
            [getattr(point, field) for point in points],
        )
        for run, points in zip(runs, timelines, strict=True)
    ]
    return Panel(title, f"Virtual time ({unit})", label, lines)


def _replicas(runs: SequenceOf[ServiceRun]) -> Panel:
    lines = []
    for run in runs:
        seen = [each for record in run.sampled.records for each in record.scaled]
        for kind in ("targets", "drafts"):
            counts = [float(getattr(each, f"num_{kind}")) for each in seen]
            times = [each.time_s for each in seen]
            lines.append(Line(f"{run.policy}: {kind}", times, counts, stepped=True))
    return Panel("Replicas that serve", "Virtual time (s)", "Replicas", lines)


def _distribution(runs: SequenceOf[ServiceRun], title: str, field: str) -> Panel:
    lines = []
    for run in runs:
        values = getattr(run, field)
        if values:
            quantiles = 1000 * np.percentile(values, SHARES)
            lines.append(Line(run.policy, quantiles.tolist(), [share / 100 for share in SHARES]))
    return Panel(title, "Milliseconds", "Part of all that took at most so long", lines)
