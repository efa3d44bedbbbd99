"""`specdec drift`: has a drafter's acceptance drifted, what does it cost, would retraining pay?"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specdec.cli.console import messages, output, print_json
from specdec.cli.options import AsJson
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from specdec.simulation.drift_cost import ClassDrift, DailyCost, Window
    from specdec.simulation.retraining import Verdict
    from specdec.speculation.controller.acceptance_log import AcceptanceRecord

EXAMPLES = """Examples:

    specdec drift acceptance.jsonl

    specdec drift replica-*.jsonl --gpus 4 --gpu-hour-cost 2.5 --retrain-gpu-hours 48

    specdec drift acceptance.jsonl --reference-days 14 --json

The files are what engines write whose `speculation.acceptance_log` names one. docs/drift.md
explains the fields and the arithmetic.

Exit status: 0 whatever the verdict, 2 bad input."""

DAY_S = 86_400.0

Files = Annotated[list[Path], typer.Argument(help="Saved acceptance statistics, all engines'.")]
Gpus = Annotated[int, typer.Option(help="GPUs of one target replica.")]
GpuHourCost = Annotated[float | None, typer.Option(help="Price of one GPU-hour.")]
RetrainGpuHours = Annotated[
    float | None, typer.Option(help="GPU-hours that retraining the drafter takes.")
]
HorizonDays = Annotated[float, typer.Option(help="Days within which retraining must pay back.")]
ReferenceDays = Annotated[float, typer.Option(help="Days at the beginning that are `then`.")]
RecentDays = Annotated[float, typer.Option(help="Days at the end that are `now`.")]


def drift(
    files: Files,
    gpus: Gpus = 1,
    gpu_hour_cost: GpuHourCost = None,
    retrain_gpu_hours: RetrainGpuHours = None,
    horizon_days: HorizonDays = 90.0,
    reference_days: ReferenceDays = 7.0,
    recent_days: RecentDays = 7.0,
    as_json: AsJson = False,
) -> None:
    """Compare a drafter's acceptance then and now, and price what a drop costs per day."""
    if gpus < 1:
        raise ConfigError(f"gpus must be at least 1, not {gpus}", field="gpus")
    _check("gpu_hour_cost", gpu_hour_cost, may_be_zero=True)
    _check("retrain_gpu_hours", retrain_gpu_hours, may_be_zero=True)
    _check("horizon_days", horizon_days)
    _check("reference_days", reference_days)
    _check("recent_days", recent_days)
    from specdec.simulation.drift_cost import class_drifts
    from specdec.simulation.retraining import verdict
    from specdec.speculation.controller.drift import DriftSettings

    settings = DriftSettings(reference_s=reference_days * DAY_S)
    drifts = class_drifts(_read(files), settings, recent_days * DAY_S, gpus)
    verdicts = [
        verdict(name, [d for d in drifts if d.drafter == name], retrain_gpu_hours, horizon_days)
        for name in dict.fromkeys(each.drafter for each in drifts)
    ]
    if as_json:
        print_json(_as_json(drifts, verdicts, gpu_hour_cost))
    else:
        _print(output(), drifts, verdicts, gpu_hour_cost, retrain_gpu_hours)


def _check(field: str, value: float | None, may_be_zero: bool = False) -> None:
    if value is None or (math.isfinite(value) and (value > 0 or (may_be_zero and value == 0))):
        return
    least = "at least 0" if may_be_zero else "above 0"
    raise ConfigError(f"{field} must be finite and {least}, not {value}", field=field)


def _read(files: list[Path]) -> list[AcceptanceRecord]:
    from specdec.speculation.controller.acceptance_log import read_log

    records: list[AcceptanceRecord] = []
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise ConfigError(f"{file}: named twice, and would count twice", field="files")
        seen.add(file.resolve())
        reading = read_log(file)
        for line in reading.torn_lines:
            messages().print(f"[yellow]{file}, line {line}: cut short by a crash, left out[/]")
        records += reading.records
    if not any(record.drafter is not None for record in records):
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: no record of a drafter's rounds", field="files")
    return records


# -- JSON -----------------------------------------------------------------------------------------


def _as_json(
    drifts: list[ClassDrift], verdicts: list[Verdict], gpu_hour_cost: float | None
) -> dict[str, Any]:
    return {
        "classes": [_class_as_json(each) for each in drifts],
        "verdicts": [_verdict_as_json(each, gpu_hour_cost) for each in verdicts],
    }


def _class_as_json(drift: ClassDrift) -> dict[str, Any]:
    return {
        "drafter": drift.drafter,
        "class": drift.label,
        "status": drift.status.value,
        "days": round(drift.days, 3),
        "then": drift.then and _window_as_json(drift.then),
        "now": drift.now and _window_as_json(drift.now),
        "change_99": drift.change,
        "dropped_since": drift.changed_s and _when(drift.changed_s),
        "rises": drift.num_rises,
        "at_least": drift.at_least and _cost_as_json(drift.at_least),
        "at_most": drift.at_most and _cost_as_json(drift.at_most),
    }


def _window_as_json(window: Window) -> dict[str, Any]:
    known = window.first.trials > 0
    return {
        "start": _when(window.start_s),
        "end": _when(window.end_s),
        "trials": window.first.trials,
        "acceptance": window.first.rate if known else None,
        "interval_95": window.first.interval() if known else None,
        "tokens_per_step": window.total.tokens / max(window.total.rounds, 1),
    }


def _cost_as_json(cost: DailyCost) -> dict[str, float]:
    return {
        "tokens_per_step_then": cost.tokens_then,
        "tokens_per_step_now": cost.tokens_now,
        "steps_per_day": cost.steps,
        "steps_needed": cost.steps_needed,
        "seconds_per_step": cost.seconds_per_step,
        "gpu_hours_per_day": cost.gpu_hours,
    }


def _verdict_as_json(verdict: Verdict, gpu_hour_cost: float | None) -> dict[str, Any]:
    hours, days = verdict.gpu_hours_per_day, verdict.payback_days
    priced = hours and gpu_hour_cost is not None
    return {
        "drafter": verdict.drafter,
        "status": verdict.status.value,
        "gpu_hours_per_day": hours,
        "cost_per_day": [each * (gpu_hour_cost or 0) for each in hours or ()] if priced else None,
        "payback_days": days and [each if math.isfinite(each) else None for each in days],
        "verdict": verdict.text,
    }


# -- text -----------------------------------------------------------------------------------------


def _print(
    console: Console,
    drifts: list[ClassDrift],
    verdicts: list[Verdict],
    gpu_hour_cost: float | None,
    retrain_gpu_hours: float | None,
) -> None:
    for drift in drifts:
        console.print(f"[bold]{drift.drafter}, {drift.label}[/]: {drift.status.value}")
        _print_class(console, drift)
        console.print()
    for verdict in verdicts:
        _print_verdict(console, verdict, gpu_hour_cost, retrain_gpu_hours)


def _print_class(console: Console, drift: ClassDrift) -> None:
    if drift.change is None or drift.then is None or drift.now is None:
        console.print(
            f"  {drift.days:.1f} days are on record; a reference and the days after it are needed"
        )
        return
    _print_level(console, "then", drift.then)
    _print_level(console, "now ", drift.now)
    low, high = drift.change
    console.print(f"  change {low:+.4f} to {high:+.4f} (99 %)")
    if drift.num_rises:
        console.print(f"  then begins after the last of {drift.num_rises} rises")
    if drift.changed_s is not None:
        console.print(f"  dropped since about {_when(drift.changed_s)}")
    if drift.at_least is not None and drift.at_most is not None:
        _print_positions(console, drift)
        _print_cost(console, "at least, with today's K", drift.at_least)
        if drift.at_most.gpu_hours > drift.at_least.gpu_hours:
            _print_cost(console, "at most, with the K of then, draft tokens free", drift.at_most)


def _print_level(console: Console, name: str, window: Window) -> None:
    low, high = window.first.interval()
    console.print(
        f"  {name}  first draft token accepted {window.first.rate:.4f} ({low:.4f} to {high:.4f}), "
        f"{window.first.trials} trials, {_when(window.start_s)} to {_when(window.end_s)}"
    )


def _print_positions(console: Console, drift: ClassDrift) -> None:
    table = Table(
        "  position",
        "steps that draft it, now",
        "accepted so far, then",
        "now",
        box=None,
        pad_edge=False,
    )
    for number, position in enumerate(drift.positions, start=1):
        table.add_row(
            f"  {number}",
            f"{position.share_now:.4f}",
            f"{position.survival_then:.4f}",
            f"{position.survival_now:.4f}",
        )
    console.print(table)


def _print_cost(console: Console, title: str, cost: DailyCost) -> None:
    saved = cost.steps - cost.steps_needed
    console.print(f"  {title}:")
    console.print(
        f"    tokens per step: {cost.tokens_now:.4f} now, {cost.tokens_then:.4f} with the "
        "acceptance of then"
    )
    console.print(
        f"    steps per day: {cost.steps:.0f}; {cost.steps:.0f} * {cost.tokens_now:.4f} / "
        f"{cost.tokens_then:.4f} = {cost.steps_needed:.0f} would do"
    )
    console.print(
        f"    {saved:.0f} steps * {cost.seconds_per_step:.6f} s * {cost.gpus} GPUs / 3600 = "
        f"[bold]{cost.gpu_hours:.4f} GPU-hours per day[/]"
    )


def _print_verdict(
    console: Console,
    verdict: Verdict,
    gpu_hour_cost: float | None,
    retrain_gpu_hours: float | None,
) -> None:
    if verdict.gpu_hours_per_day is not None:
        least, most = verdict.gpu_hours_per_day
        hours = _range(least, most, decimals=4)
        text = f"{verdict.drafter} loses {hours} GPU-hours per day"
        if gpu_hour_cost is not None:
            price = _range(least * gpu_hour_cost, most * gpu_hour_cost, decimals=2)
            text += f", at {gpu_hour_cost:g} each {price}"
        console.print(text)
    if verdict.payback_days is not None and retrain_gpu_hours is not None:
        price = ""
        if gpu_hour_cost is not None:
            price = f" ({retrain_gpu_hours * gpu_hour_cost:.2f})"
        console.print(
            f"retraining takes {retrain_gpu_hours:g} GPU-hours{price}: paid back after "
            f"{_range(*verdict.payback_days, decimals=1)} days"
        )
    console.print(f"[bold]{verdict.drafter}: {verdict.text}[/]")


def _range(low: float, high: float, decimals: int) -> str:
    first, last = f"{low:.{decimals}f}", f"{high:.{decimals}f}"
    return first if first == last else f"{first} to {last}"


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
