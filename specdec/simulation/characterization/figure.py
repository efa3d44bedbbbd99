"""The picture of a characterisation: acceptance over temperature, by drafter, rule and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specdec.simulation.characterization.summary import ALL, Row
from specdec.simulation.plots import Line, Panel, save

RULE_LABELS = {
    "maximal": "maximal, 1 - TV",
    "sparse": "sparse law",
    "coupled": "coupled",
    "greedy": "draft's argmax",
}


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Over all categories: for each drafter the rules at the largest top-p; then what top-p does
    to the sparse law of the first drafter."""
    together = [row for row in rows if row.category == ALL]
    by_drafter = {
        name: [row for row in together if row.drafter == name]
        for name in dict.fromkeys(row.drafter for row in together)
    }
    panels = [_by_rule(name, own) for name, own in by_drafter.items()]
    panels.append(_by_top_p(*next(iter(by_drafter.items()))))
    save(path, panels, columns=2)


def _by_rule(drafter: str, rows: Sequence[Row]) -> Panel:
    top_p = max(row.top_p for row in rows)
    drawn = _at(rows, top_p)
    lines = [_line(label, drawn, name) for name, label in RULE_LABELS.items()]
    lines.append(_line("coupled, lower bound", drawn, "coupled_bound", reference=True))
    return _panel(f"{drafter}, top-p {top_p:g}", lines, rows)


def _by_top_p(drafter: str, rows: Sequence[Row]) -> Panel:
    top_ps = sorted({row.top_p for row in rows if row.temperature > 0}, reverse=True)
    lines = [_line(f"top-p {top_p:g}", _at(rows, top_p), "sparse") for top_p in top_ps]
    return _panel(f"{drafter}, {RULE_LABELS['sparse']}", lines, rows)


def _at(rows: Sequence[Row], top_p: float) -> list[Row]:
    """The rows at one top-p, and at temperature 0, where it changes nothing."""
    return [row for row in rows if row.top_p == top_p or row.temperature == 0]


def _line(label: str, rows: Sequence[Row], name: str, reference: bool = False) -> Line:
    points = [(row.temperature, y) for row in rows if (y := getattr(row, name)) is not None]
    return Line(label, [x for x, _ in points], [y for _, y in points], reference, marker="o")


def _panel(title: str, lines: Sequence[Line], rows: Sequence[Row]) -> Panel:
    return Panel(
        title,
        "Temperature",
        "Acceptance of a draft token",
        lines,
        y_limits=(0, 1),
        x_ticks=sorted({row.temperature for row in rows}),
    )
