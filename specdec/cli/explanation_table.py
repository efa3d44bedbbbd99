"""Explanations for people: one line for each decode step, and one for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console

from specdec.sequence import Explanation

COLUMNS = (
    "step", "ms", "drafter", "k", "drafted", "accepted", "survival", "price", "speedup", "reason",
)  # fmt: skip
LEGEND = (
    "survival: chance that draft tokens 1, 2, ... k + 1 are accepted; price: what one must exceed, "
    "+ what a deeper draft must earn; speedup: expected, over no speculation"
)


def print_explanations(console: Console, explanations: Sequence[Explanation]) -> None:
    """The table, what its columns mean, and the summary."""
    start_s = explanations[0].time_s
    rows = [COLUMNS, *(_row(each, start_s) for each in explanations)]
    for line in _aligned(rows):
        console.print(line, markup=False)
    console.print(LEGEND, style="dim")
    console.print(summary(explanations), markup=False)


def summary(explanations: Sequence[Explanation]) -> str:
    """How much was asked for, what became of it, and in which phases."""
    num_steps = len(explanations)
    drafted = sum(each.num_draft_tokens or 0 for each in explanations)
    accepted = sum(each.num_accepted_tokens or 0 for each in explanations)
    mean_k = sum(each.k for each in explanations) / num_steps
    rate = f" ({accepted / drafted:.0%})" if drafted else ""
    phases = Counter(each.phase for each in explanations)
    parts = ", ".join(f"{name} {count}" for name, count in phases.most_common())
    return (
        f"{num_steps} decode steps: mean k {mean_k:.2f}; {drafted} drafted, {accepted} "
        f"accepted{rate}; phases: {parts}"
    )


def _row(each: Explanation, start_s: float) -> tuple[str, ...]:
    return (
        str(each.step),
        f"{1000 * (each.time_s - start_s):.0f}",
        each.drafter or "-",
        str(each.k),
        _count(each.num_draft_tokens),
        _count(each.num_accepted_tokens),
        " ".join(f"{chance:.2f}".lstrip("0") for chance in each.survival) or "-",
        _price(each),
        f"{each.predicted_speedup:.2f}" if each.survival else "-",
        each.reason,
    )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns, none of them cut, however narrow the terminal: they may be piped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _price(each: Explanation) -> str:
    if not each.survival:
        return "-"
    deeper = f" + {each.depth_price:.2f}" if each.depth_price >= 0.005 else ""
    return f"{each.shadow_price:.2f}{deeper}"
