"""What `specdec characterize` prints: tables of acceptance and of mean acceptance lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from specdec.simulation.characterization.summary import Row


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    """Three tables for each drafter; --output and --json have every row."""
    from specdec.simulation.characterization.summary import ALL  # it loads torch

    for drafter in dict.fromkeys(row.drafter for row in rows):
        own = [row for row in rows if row.drafter == drafter]
        together = [row for row in own if row.category == ALL]
        console.print(_table(f"{drafter}: acceptance of a draft token", _ACCEPTANCE, together))
        if any(row.length_maximal is not None for row in together):
            console.print(_table(f"{drafter}: mean acceptance length", _LENGTHS, together))
        console.print(_by_category(drafter, own))


# Heading, field of Row, decimals.
_Columns = tuple[tuple[str, str, int], ...]
_CELL: _Columns = (("temp", "temperature", 1), ("top-p", "top_p", 2))
_ACCEPTANCE: _Columns = (
    *_CELL,
    ("tokens", "num_positions", 0),
    ("entropy", "entropy", 2),
    ("drafted", "coverage", 2),
    ("maximal", "maximal", 3),
    ("+-", "maximal_error", 3),
    ("sparse", "sparse", 3),
    ("coupled", "coupled", 3),
    ("bound", "coupled_bound", 3),
    ("greedy", "greedy", 3),
)
_LENGTHS: _Columns = (
    *_CELL,
    ("geometric", "length_geometric", 2),
    ("maximal", "length_maximal", 2),
    ("sparse", "length_sparse", 2),
    ("coupled", "length_coupled", 2),
    ("greedy", "length_greedy", 2),
    ("engine: coupled", "measured_coupled", 2),
    ("rejection", "measured_rejection", 2),
    ("block", "measured_block", 2),
)


def _table(title: str, columns: _Columns, rows: Sequence[Row]) -> Table:
    """The columns that hold something."""
    cells = [
        (heading, [_shown(getattr(row, name), decimals) for row in rows])
        for heading, name, decimals in columns
    ]
    table = _new_table(title)
    shown = [(heading, column) for heading, column in cells if any(column)]
    for heading, _ in shown:
        table.add_column(heading, justify="right")
    for values in zip(*(column for _, column in shown), strict=True):
        table.add_row(*values)
    return table


def _by_category(drafter: str, rows: Sequence[Row]) -> Table:
    """Maximal acceptance at the largest top-p, by category and temperature."""
    top_p = max(row.top_p for row in rows)
    drawn = [row for row in rows if row.top_p == top_p or row.temperature == 0]
    table = _new_table(f"{drafter}: maximal acceptance at top-p {top_p:g}")
    table.add_column("category")
    for temperature in dict.fromkeys(row.temperature for row in drawn):
        table.add_column(f"{temperature:g}", justify="right")
    for category in dict.fromkeys(row.category for row in drawn):
        values = [_shown(row.maximal, 3) for row in drawn if row.category == category]
        table.add_row(category, *values)
    return table


def _new_table(title: str) -> Table:
    return Table(title=f"[bold]{title}[/]", title_justify="left", box=None, padding=(0, 1, 0, 0))


def _shown(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"
