"""`specdec theory`: what speculation can gain, from closed formulas, before anything is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specdec.cli.console import messages, output, print_json
from specdec.cli.options import AsJson
from specdec.errors import ConfigError
from specdec.simulation import theory as formulas

if TYPE_CHECKING:
    from specdec.simulation.plots import Panel

EXAMPLES = """Examples:

    specdec theory --alpha 0.7 --k 4 --cost 0.05

    specdec theory --alpha 0.8 --k 3 --cost 0.06 --network 0.02 --json

    specdec theory --alpha 0.7 --k 4 --cost 0.05 --batch 64 --knee 295

    specdec theory --cost 0.05 --plot speedup.svg

Times are in units of one target step: a draft step of 1 ms beside a target step of 20 ms is
--cost 0.05. docs/theory.md names the formulas."""

DECIMALS = 4
TABLE_K = 16
PLOTTED_KS = (1, 2, 4, 8, 16)
PLOTTED_POINTS = 101

Alpha = Annotated[float, typer.Option(help="Chance that a draft token is accepted, 0 to 1.")]
K = Annotated[int, typer.Option("--k", help=f"Draft tokens per round, 0 to {formulas.MAX_K}.")]
Cost = Annotated[float, typer.Option(help="Time of one draft step over one target step.")]
Network = Annotated[float, typer.Option(help="Round trip to the draft over one target step.")]
ArithmeticCost = Annotated[
    float | None,
    typer.Option(help="Operations per token, draft over target. Default: the same as --cost."),
]
HitRate = Annotated[
    float | None, typer.Option(help="Rounds whose draft was prepared for the outcome, 0 to 1.")
]
Batch = Annotated[int, typer.Option(help="Sequences per step. Matters with --knee.")]
Knee = Annotated[
    float | None,
    typer.Option(help="Tokens in a step from which it is bound by arithmetic; 295: H100, bf16."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw speed-up over acceptance, as .png or .svg."),
]


def theory(
    alpha: Alpha = 0.7,
    k: K = 4,
    cost: Cost = 0.05,
    network: Network = 0.0,
    arithmetic_cost: ArithmeticCost = None,
    hit_rate: HitRate = None,
    batch: Batch = 1,
    knee: Knee = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Expected tokens, speed-up, break-even and limits of speculation, in closed form."""
    formulas.check(alpha, k, cost, network, batch)
    if plot is not None:
        from specdec.simulation import plots

        plots.check_path(plot)
    result: dict[str, Any] = {"alpha": alpha, "k": k, "cost": cost, "network": network}
    result |= _one_sequence(alpha, k, cost)
    result |= _arithmetic(alpha, k, cost if arithmetic_cost is None else arithmetic_cost)
    result |= _apart(alpha, k, cost, network, hit_rate)
    if knee is not None:
        result["serving"] = _serving(alpha, k, cost, network, batch, knee)
    result["by_k"] = [_row(alpha, each, cost) for each in range(max(k, TABLE_K) + 1)]
    result = _rounded(result)
    if plot is not None:
        plots.save(plot, [panel(cost, k)])
        messages().print(f"wrote {plot}")
    if as_json:
        print_json(result)
    else:
        _print(output(), result)


def _one_sequence(alpha: float, k: int, cost: float) -> dict[str, Any]:
    best = formulas.best_k(alpha, cost)
    return {
        "expected_tokens": formulas.expected_tokens(alpha, k),
        "speedup": formulas.speedup(alpha, k, cost),
        "best_k": best,
        "best_speedup": formulas.speedup(alpha, best, cost),
        "improves": formulas.improves(alpha, cost),
        "least_gain": formulas.least_gain(alpha, cost),
        "break_even_acceptance": formulas.break_even_acceptance(k, cost),
        "free_draft_limit": formulas.free_draft_limit(alpha),
    }


def _arithmetic(alpha: float, k: int, arithmetic_cost: float) -> dict[str, Any]:
    if not (math.isfinite(arithmetic_cost) and arithmetic_cost >= 0):
        raise ConfigError(
            f"arithmetic_cost must be finite and at least 0, not {arithmetic_cost}",
            field="arithmetic_cost",
        )
    return {"arithmetic_inflation": formulas.arithmetic_inflation(alpha, k, arithmetic_cost)}


def _apart(
    alpha: float, k: int, cost: float, network: float, hit_rate: float | None
) -> dict[str, Any]:
    """The draft on a device of its own."""
    values: dict[str, Any] = {
        "remote_speedup": formulas.remote_speedup(alpha, k, cost, network),
        "asynchronous_limit": formulas.asynchronous_limit(alpha, cost, network),
        "hidden_draft_tokens": formulas.hidden_draft_tokens(cost),
        "targets_per_drafter": formulas.targets_per_drafter(k, cost),
    }
    if hit_rate is not None:
        values["enumeration_speedup"] = formulas.enumeration_speedup(alpha, k, cost, hit_rate)
    return values


def _serving(
    alpha: float, k: int, cost: float, network: float, batch: int, knee: float
) -> dict[str, Any]:
    step_cost = formulas.roofline(knee)

    def gain(each: int) -> float:
        return formulas.serving_speedup(alpha, each, batch, step_cost, cost, network)

    best = max(range(TABLE_K + 1), key=gain)
    return {
        "batch": batch,
        "knee": knee,
        "speedup": gain(k),
        "break_even_tokens": formulas.serving_break_even_tokens(k, batch, step_cost, cost, network),
        "best_k": best,
        "best_speedup": gain(best),
        "largest_free_k": formulas.largest_free_k(knee, batch),
    }


def _row(alpha: float, k: int, cost: float) -> dict[str, Any]:
    return {
        "k": k,
        "expected_tokens": formulas.expected_tokens(alpha, k),
        "speedup": formulas.speedup(alpha, k, cost),
        "break_even_acceptance": formulas.break_even_acceptance(k, cost),
    }


def _rounded(value: Any) -> Any:
    """Floats to four decimals; what has no limit becomes null, which JSON can say."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return round(value, DECIMALS) if math.isfinite(value) else None
    return value


def panel(cost: float, k: int) -> Panel:
    """Speed-up over acceptance: a curve for `k` and for each of several K, and the envelope."""
    from specdec.simulation.plots import Line, Panel

    alphas = [point / (PLOTTED_POINTS - 1) for point in range(PLOTTED_POINTS)]
    best = [formulas.speedup(a, formulas.best_k(a, cost), cost) for a in alphas]
    curves = [
        Line(f"K = {k}", alphas, [formulas.speedup(a, k, cost) for a in alphas]) for k in PLOTTED_KS
    ]
    return Panel(
        title=f"One sequence, draft step = {cost:g} target steps",
        x_label="Acceptance of a draft token",
        y_label="Speed-up (times no speculation)",
        lines=[*curves, Line(f"best K up to {TABLE_K}", alphas, best, reference=True)],
    )


WORDS = {
    "expected_tokens": "tokens per round",
    "speedup": "speed-up",
    "best_k": f"best K up to {TABLE_K}",
    "best_speedup": "speed-up at the best K",
    "improves": "some K is faster than none",
    "least_gain": "speed-up at K = 1",
    "break_even_acceptance": "acceptance from which this K pays",
    "free_draft_limit": "limit: free draft, endless K",
    "arithmetic_inflation": "operations per token, times",
    "remote_speedup": "speed-up, each round waits for the network",
    "asynchronous_limit": "limit: draft runs ahead on one guess",
    "enumeration_speedup": "speed-up, drafts prepared for likely outcomes",
    "hidden_draft_tokens": "draft steps that fit into a target step",
    "targets_per_drafter": "targets that one drafter keeps up with",
}
NEVER, NO_LIMIT = "never", "no limit"
SERVING_WORDS = {
    "speedup": "speed-up",
    "break_even_tokens": "tokens per round from which this K pays",
    "best_k": f"best K up to {TABLE_K}",
    "best_speedup": "speed-up at the best K",
    "largest_free_k": "largest K below the knee",
}


def _print(console: Console, result: dict[str, Any]) -> None:
    console.print(
        f"acceptance {result['alpha']:g}, K = {result['k']}, draft step {result['cost']:g} and "
        f"round trip {result['network']:g} target steps\n"
    )
    console.print(_pairs(WORDS, result))
    if "serving" in result:
        serving = result["serving"]
        console.print(f"\nbatch of {serving['batch']}, knee at {serving['knee']:g} tokens\n")
        console.print(_pairs(SERVING_WORDS, serving))
    console.print()
    table = Table("K", "tokens", "speed-up", "pays from acceptance", box=None, pad_edge=False)
    for row in result["by_k"]:
        marks = "bold" if row["k"] == result["k"] else None
        table.add_row(*map(_text, row.values()), style=marks)
    console.print(table)


def _pairs(words: dict[str, str], values: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, text in words.items():
        if key in values:
            table.add_row(text, _text(values[key], NEVER if "break_even" in key else NO_LIMIT))
    return table


def _text(value: Any, none: str = NEVER) -> str:
    if value is None:
        return none
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
