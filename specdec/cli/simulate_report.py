"""What `specdec simulate` prints: the object of `--json`, and the same as tables."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from specdec.simulation.closed_runs import PolicyRun

DECIMALS = 4


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
        f"{report['num_requests']} requests, {report['drafter']}, {load}, "
        f"{report['steps']} steps, seed {report['seed']}\n"
    )
    table = Table("policy", box=None, pad_edge=False)
    for heading in ("tokens/s", "over off", "mean K", "acceptance", "K changes/1000 steps"):
        table.add_column(heading, justify="right")
    for entry in report["policies"]:
        table.add_row(
            entry["policy"],
            f"{entry['goodput_tokens_per_s']:.1f}",
            f"{entry['speedup_vs_off']:.4f}",
            f"{entry['mean_k']:.2f}",
            f"{entry['acceptance_rate']:.3f}",
            f"{entry['k_changes_per_1000_steps']:.1f}",
        )
    console.print(table)
