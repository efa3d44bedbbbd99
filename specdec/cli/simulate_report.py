"""What `specdec simulate` prints: the object of `--json`, and the same as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from specdec.cli.text_table import table_lines

if TYPE_CHECKING:
    from specdec.simulation.closed_runs import PolicyRun
    from specdec.simulation.service.report import ServiceRun

DECIMALS = 4
PERCENTILES = (50, 90, 99)


def closed(runs: SequenceOf[PolicyRun]) -> dict[str, Any]:
    """`policies`: one entry for each policy; where there is one only, its fields stand beside."""
    entries = [_closed_entry(run) for run in runs]
    alone = entries[0] if len(entries) == 1 else {}
    return alone | {"policies": entries}


def _closed_entry(run: PolicyRun) -> dict[str, Any]:
    total = run.total
    return {
        "policy": run.setting.name,
        "drafters": list(run.setting.drafters),
        "goodput_tokens_per_s": round(total.goodput_tokens_per_s, DECIMALS),
        "speedup_vs_off": round(run.speedup_vs_off, DECIMALS),
        "mean_k": round(total.mean_k, DECIMALS),
        "acceptance_rate": round(total.acceptance_rate, DECIMALS),
        "tokens_per_sequence_step": round(total.num_committed / total.num_sequence_steps, DECIMALS),
        "k_changes_per_1000_steps": round(total.switches_per_1000_steps, DECIMALS),
        "virtual_seconds": round(total.seconds, DECIMALS),
        "num_committed_tokens": total.num_committed,
        "num_draft_tokens": total.num_drafted,
        "num_accepted_tokens": total.num_accepted,
        "num_finished_requests": total.num_finished,
        "sequence_steps_by_k": {str(k): n for k, n in sorted(total.steps_by_k.items())},
    }


def print_closed(console: Console, report: dict[str, Any]) -> None:
    """A line for each policy, with its goodput over that of `off`."""
    load = f"ramp {report['ramp']}" if report["ramp"] else f"{report['concurrency']} sequences"
    console.print(
        f"{report['num_requests']} requests, {report['drafter']} on {report['cost']}, {load}, "
        f"{report['steps']} steps, seed {report['seed']}\n"
    )
    headings = ["policy", "tokens/s", "over off", "mean K", "acceptance", "K changes/1000 steps"]
    rows = [
        [
            entry["policy"],
            f"{entry['goodput_tokens_per_s']:.1f}",
            f"{entry['speedup_vs_off']:.4f}",
            f"{entry['mean_k']:.2f}",
            f"{entry['acceptance_rate']:.3f}",
            f"{entry['k_changes_per_1000_steps']:.1f}",
        ]
        for entry in report["policies"]
    ]
    print_table(console, headings, rows)


def print_table(console: Console, headings: SequenceOf[str], rows: SequenceOf[list[str]]) -> None:
    """Text is text here: a name in brackets is no markup."""
    for line in table_lines(headings, rows):
        console.print(escape(line))


def service(
    runs: SequenceOf[ServiceRun],
    off: ServiceRun,
    price: tuple[float, int, int] | None,
) -> dict[str, Any]:
    """As `closed`, for services. price: of a GPU-hour, GPUs of a target, GPUs of a draft."""
    entries = [_service_entry(run, off, price) for run in runs]
    alone = entries[0] if len(entries) == 1 else {}
    return alone | {"policies": entries}


def _service_entry(
    run: ServiceRun, off: ServiceRun, price: tuple[float, int, int] | None
) -> dict[str, Any]:
    totals, sampled = run.totals, run.sampled
    entry = {
        "policy": run.policy,
        "drafters": list(run.drafters),
        "goodput_tokens_per_s": run.goodput_tokens_per_s,
        "goodput_relative_standard_error": sampled.standard_error,
        "speedup_vs_off": _over(run.goodput_tokens_per_s, off.goodput_tokens_per_s),
        "ttft_ms": _milliseconds(run.ttft_s),
        "tpot_ms": _milliseconds(run.tpot_s),
        "e2e_ms": _milliseconds(run.e2e_s),
        "mean_k": _over(totals.num_drafted, totals.num_decodes),
        "acceptance_rate": _over(totals.num_accepted, totals.num_drafted),
        "mean_batch": _over(totals.num_decodes, totals.num_steps),
        "mean_queue": _over(totals.num_queued, totals.num_steps),
        "busy_fraction": run.busy_fraction,
        "waiting_for_drafts": _over(totals.wait_s, totals.step_s),
        "num_late": totals.num_late,
        "num_arrived": run.count("num_arrived"),
        "num_finished": run.count("num_finished"),
        "num_preempted": run.count("num_preempted"),
        "num_refused": run.count("num_refused"),
        "num_sampled_targets": sampled.num_targets,
    }
    if run.scaled is not None:
        entry |= asdict(run.scaled)
    if price is not None and run.goodput_tokens_per_s:
        entry["cost_per_million_tokens"] = run.cost_per_million_tokens(*price)
    return {key: _rounded(value) for key, value in entry.items()}


def _milliseconds(values: list[float]) -> dict[str, float | None]:
    """Percentiles; null where nothing was measured."""
    if not values:
        return {f"p{share}": None for share in PERCENTILES}
    found = 1000 * np.percentile(values, PERCENTILES)
    return {
        f"p{share}": round(float(value), DECIMALS)
        for share, value in zip(PERCENTILES, found, strict=True)
    }


def _over(value: float, whole: float) -> float:
    return value / whole if whole else 0.0


def _rounded(value: Any) -> Any:
    """Floats to four decimals; what is not known becomes null."""
    if isinstance(value, float):
        return round(value, DECIMALS) if math.isfinite(value) else None
    return value


def print_service(console: Console, report: dict[str, Any]) -> None:
    """A line for each policy: speed, latencies, K, and what is waited for."""
    load = report["arrivals"] or f"{report['concurrency']} clients per target"
    console.print(
        f"{report['targets']} targets and {report['drafts']} drafts apart ({report['gpus']} GPUs), "
        f"{report['drafter']} on {report['cost']}, {load}, {report['duration_s']:g} s, "
        f"seed {report['seed']}"
    )
    if report["sample"]:
        first = report["policies"][0]
        console.print(
            f"estimated from {report['sample']} s of {first['num_sampled_targets']} targets"
        )
    console.print()
    headings = ["policy", "tokens/s", "over off", "TTFT ms p50/p99", "TPOT ms p50/p99", "mean K"]
    headings += ["acceptance", "batch", "queue", "busy", "waits"]
    rows = [_service_row(entry) for entry in report["policies"]]
    if "mean_gpus" in report["policies"][0]:
        headings += ["targets mean/most", "drafts mean/most", "GPUs", "changes"]
        for entry, row in zip(report["policies"], rows, strict=True):
            row += _scaled_cells(entry)
    if "cost_per_million_tokens" in report["policies"][0]:
        headings.append("per M tokens")
        for entry, row in zip(report["policies"], rows, strict=True):
            row.append(f"{entry['cost_per_million_tokens']:.3f}")
    print_table(console, headings, rows)


def _service_row(entry: dict[str, Any]) -> list[str]:
    error = entry["goodput_relative_standard_error"]
    margin = "" if error == 0 else " ±?" if error is None else f" ±{100 * error:.1f}%"
    return [
        entry["policy"],
        f"{entry['goodput_tokens_per_s']:.1f}{margin}",
        f"{entry['speedup_vs_off']:.4f}",
        _span(entry["ttft_ms"]),
        _span(entry["tpot_ms"]),
        f"{entry['mean_k']:.2f}",
        f"{entry['acceptance_rate']:.3f}",
        f"{entry['mean_batch']:.1f}",
        f"{entry['mean_queue']:.1f}",
        f"{100 * entry['busy_fraction']:.0f}%",
        f"{100 * entry['waiting_for_drafts']:.1f}%",
    ]


def _scaled_cells(entry: dict[str, Any]) -> list[str]:
    return [
        f"{entry['mean_targets']:.2f}/{entry['most_targets']}",
        f"{entry['mean_drafts']:.2f}/{entry['most_drafts']}",
        f"{entry['mean_gpus']:.2f}",
        str(entry["num_target_changes"] + entry["num_draft_changes"]),
    ]


def _span(found: dict[str, float | None]) -> str:
    low, high = found["p50"], found["p99"]
    return "-" if low is None or high is None else f"{low:.1f}/{high:.1f}"
