"""`specdec simulate --reproduce`: published speed-ups beside simulated ones, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from rich.console import Console

from specdec.cli.console import messages, output, print_json, progress_bar
from specdec.cli.simulate_report import print_table
from specdec.errors import ConfigError
from specdec.simulation.reproduction.cells import NUM_FITTED, CurveRun, run_curves
from specdec.simulation.reproduction.checks import (
    RecordedCurve,
    ShareCell,
    TreeRow,
    dataset_of,
    recorded_curves,
    share_cells,
    tree_rows,
    tree_verdict,
)
from specdec.simulation.reproduction.machines import FITTED
from specdec.simulation.reproduction.published import BATCHES, FLAWS, PAPER, SPEEDUPS

DECIMALS = 3


def reproduce(paper: str, traces: SequenceOf[Path], seed: int, as_json: bool) -> None:
    """Print everything. Raises ConfigError (field `reproduce` or `trace`)."""
    if paper != PAPER:
        raise ConfigError(f"reproduce: only {PAPER} is known, not {paper!r}", field="reproduce")
    for path in traces:
        if dataset_of(path) is None:
            raise ConfigError(
                f"trace: the name of {path} tells no data set: gsm8k, cnn, sharegpt, instructcoder",
                field="trace",
            )
    with progress_bar("curves", len(SPEEDUPS) + len(traces)) as advance:
        recorded = []
        for path in traces:
            recorded += recorded_curves(path, seed)
            advance()
        runs = run_curves(seed, advance)
    report = _report(seed, runs, recorded)
    if as_json:
        print_json(report)
    else:
        _print(output(), report)
        if not traces:
            messages().print(
                "with --trace FILE..., recordings are played beside it, nothing fitted"
            )


def _report(
    seed: int, runs: SequenceOf[CurveRun], recorded: SequenceOf[RecordedCurve]
) -> dict[str, Any]:
    trees = tree_rows()
    return {
        "paper": PAPER,
        "seed": seed,
        "batches": list(BATCHES),
        "fitted_batches": list(BATCHES[:NUM_FITTED]),
        "errors": _summary(runs, recorded),
        "speedups": [
            _curve(run.curve, run.simulated, run.errors)
            | {"tokens_per_round": round(run.tokens_per_round, DECIMALS)}
            for run in runs
        ],
        "recorded": [_curve(each.curve, each.simulated, each.errors) for each in recorded],
        "shares": [_share(cell) for cell in share_cells()],
        "trees": [_tree(row) for row in trees],
        "tree_verdict": tree_verdict(trees),
        "flaws_not_repeated": list(FLAWS),
    }


def _share(cell: ShareCell) -> dict[str, Any]:
    return {
        "model": cell.model,
        "drafter": cell.drafter,
        "batch": cell.batch,
        "published": list(cell.published),
        "simulated": _rounded(cell.simulated, 1),
    }


def _tree(row: TreeRow) -> dict[str, Any]:
    return {
        "model": row.model,
        "dataset": row.dataset,
        "shape": row.shape,
        "tokens_per_round": round(row.tokens_per_round, DECIMALS),
        "published": list(row.published),
        "simulated": _rounded(row.simulated),
    }


def _curve(curve: Any, simulated: SequenceOf[float], errors: SequenceOf[float]) -> dict[str, Any]:
    return {
        "model": curve.model,
        "drafter": curve.drafter,
        "dataset": curve.dataset,
        "k": curve.k,
        "published": list(curve.speedups),
        "simulated": _rounded(simulated),
        "error": _rounded(errors, 4),
    }


def _summary(runs: SequenceOf[CurveRun], recorded: SequenceOf[RecordedCurve]) -> dict[str, Any]:
    """Mean and worst absolute error of the cells that nothing was fitted on: batch 64 and 128, and
    all of recordings."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        kind = "fitted machines" if run.curve.model in FITTED else "qwen3-8b, not fitted"
        for name in (kind, "all", f"{run.curve.model} {run.curve.drafter}"):
            groups.setdefault(name, []).extend(abs(error) for error in run.predicted_errors)
    for each in recorded:
        groups.setdefault("recordings, all batches", []).extend(map(abs, each.errors))
    return {
        name: {
            "mean": round(sum(errors) / len(errors), 4),
            "worst": round(max(errors), 4),
            "cells": len(errors),
        }
        for name, errors in groups.items()
    }


def _rounded(values: SequenceOf[float], decimals: int = DECIMALS) -> list[float]:
    return [round(value, decimals) for value in values]


# -- text ------------------------------------------------------------------------------------------


def _print(console: Console, report: dict[str, Any]) -> None:
    console.print(
        f"arXiv {PAPER}, speed-ups at batch {', '.join(map(str, BATCHES))}: published, simulated, "
        f"error. Tokens per round are fitted at batch {BATCHES[0]} and {BATCHES[1]}.\n"
    )
    print_table(console, *_curve_table(report["speedups"], with_tokens=True))
    console.print("\nErrors where nothing was fitted, at batch 64 and 128:\n")
    rows = [
        [name, f"{100 * each['mean']:.1f}%", f"{100 * each['worst']:.1f}%", str(each["cells"])]
        for name, each in report["errors"].items()
    ]
    print_table(console, ["", "mean", "worst", "cells"], rows)
    if report["recorded"]:
        console.print("\nFrom recordings and measured step times, with nothing fitted:\n")
        print_table(console, *_curve_table(report["recorded"], with_tokens=False))
    _print_shares(console, report["shares"])
    _print_trees(console, report)
    console.print("\nThe authors' public simulator has flaws that are not repeated here:\n")
    for flaw in report["flaws_not_repeated"]:
        console.print(f"- {flaw}")


def _curve_table(
    curves: SequenceOf[dict[str, Any]], with_tokens: bool
) -> tuple[list[str], list[list[str]]]:
    headings = ["model", "drafter", "K", "requests"]
    headings += ["tokens"] if with_tokens else []
    headings += [f"B={batch}" for batch in BATCHES]
    rows = []
    for each in curves:
        row = [each["model"], each["drafter"], str(each["k"]), each["dataset"]]
        row += [f"{each['tokens_per_round']:.2f}"] if with_tokens else []
        columns = zip(each["published"], each["simulated"], each["error"], strict=True)
        row += [f"{pub:.2f} {sim:.2f} {100 * error:+.1f}%" for pub, sim, error in columns]
        rows.append(row)
    return headings, rows


def _print_shares(console: Console, cells: SequenceOf[dict[str, Any]]) -> None:
    console.print(
        "\nParts of the time on CNN/DailyMail, in per cent: drafting, target, around them "
        "(published, simulated). The target's part includes prompts.\n"
    )
    rows = [
        [
            each["model"],
            each["drafter"],
            str(each["batch"]),
            *(
                f"{published:.1f} {simulated:.1f}"
                for published, simulated in zip(each["published"], each["simulated"], strict=True)
            ),
        ]
        for each in cells
    ]
    print_table(console, ["model", "drafter", "batch", "drafting", "target", "around"], rows)


def _print_trees(console: Console, report: dict[str, Any]) -> None:
    console.print(
        "\nTrees and chains, three deep (published, simulated; tokens per round fitted at batch "
        "1):\n"
    )
    rows = [
        [
            each["model"],
            each["dataset"],
            each["shape"],
            *(
                f"{published:.2f} {simulated:.2f}"
                for published, simulated in zip(each["published"], each["simulated"], strict=True)
            ),
        ]
        for each in report["trees"]
    ]
    headings = ["model", "requests", "shape", *(f"B={batch}" for batch in BATCHES)]
    print_table(console, headings, rows)
    verdict = report["tree_verdict"]
    console.print(
        "\nat batch 64 every tree of 21 is slower than no speculation: "
        f"{_yes(verdict['tree_of_21_below_1_at_64'])}; every chain is faster: "
        f"{_yes(verdict['chain_above_1_at_64'])}"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
