"""Traces to rows: one for each drafter, category and cell, and one over all categories.

Acceptance is the mean over positions, each position of each text with the same weight. Errors are
standard errors over texts, since positions of one text are not independent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from specdec.simulation.characterization.overlap import RULES, Rule
from specdec.simulation.characterization.study import Cell
from specdec.simulation.characterization.traces import Trace
from specdec.simulation.theory import expected_tokens

ALL = "all"
DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engine did with one text: (tokens, rounds) under one verification rule."""

    drafter: str
    category: str
    cell: Cell
    verification: str
    num_tokens: int
    num_rounds: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. None: not defined here, or not measured.

    coverage: share of positions with a proposal; acceptance is over those. entropy (nats) and
    support (tokens) of the target's law. maximal, sparse, coupled, greedy: acceptance of one draft
    token by rule (overlap.Rule). coupled_bound: mean of (1 - TV) / (1 + TV). length_*: mean
    acceptance length at K, bonus included; length_geometric: what maximal * coverage would give if
    every position had it alike (2211.17192, formula 1). measured_*: the engine's own lengths, by
    verification rule.
    """

    drafter: str
    category: str
    temperature: float
    top_p: float
    num_texts: int
    num_positions: int
    coverage: float
    entropy: float
    support: float
    maximal: float | None
    maximal_error: float | None
    sparse: float | None
    coupled: float | None
    coupled_bound: float | None
    greedy: float | None
    length_geometric: float
    length_maximal: float | None
    length_sparse: float | None
    length_coupled: float | None
    length_greedy: float | None
    measured_coupled: float | None = None
    measured_rejection: float | None = None
    measured_block: float | None = None


def summarise(traces: Sequence[Trace], measured: Sequence[Measured], k: int) -> list[Row]:
    """Rows in the order drafter, category (all last), cell."""
    drafters = list(dict.fromkeys(trace.drafter for trace in traces))
    categories = [*dict.fromkeys(trace.category for trace in traces), ALL]
    cells = sorted({trace.cell for trace in traces})
    rows = []
    for drafter in drafters:
        for category in categories:
            for cell in cells:
                group = [t for t in traces if _belongs(t, drafter, category, cell)]
                real = [m for m in measured if _belongs(m, drafter, category, cell)]
                if group:
                    rows.append(_row(drafter, category, cell, group, real, k))
    return rows


def _belongs(entry: Trace | Measured, drafter: str, category: str, cell: Cell) -> bool:
    same = entry.drafter == drafter and entry.cell == cell
    return same and category in (ALL, entry.category)


def _row(
    drafter: str,
    category: str,
    cell: Cell,
    traces: Sequence[Trace],
    measured: Sequence[Measured],
    k: int,
) -> Row:
    positions = [position for trace in traces for position in trace.positions]
    overlaps = [p.overlap for p in positions if p.overlap is not None]
    means = [_mean(overlap.expected[i] for overlap in overlaps) for i in range(len(RULES))]
    acceptance = dict(zip(RULES, means, strict=True))
    coverage = len(overlaps) / len(positions)
    lengths = dict(zip(RULES, _lengths(traces), strict=True))
    return Row(
        drafter=drafter,
        category=category,
        temperature=cell.temperature,
        top_p=cell.top_p,
        num_texts=len(traces),
        num_positions=len(positions),
        coverage=coverage,
        entropy=float(np.mean([p.entropy for p in positions])),
        support=float(np.mean([p.support for p in positions])),
        maximal=acceptance[Rule.MAXIMAL],
        maximal_error=_error_of_mean([_sums(trace) for trace in traces]),
        sparse=acceptance[Rule.SPARSE],
        coupled=acceptance[Rule.COUPLED],
        coupled_bound=_mean(overlap.coupled_bound for overlap in overlaps),
        greedy=acceptance[Rule.GREEDY],
        length_geometric=expected_tokens(coverage * (acceptance[Rule.MAXIMAL] or 0.0), k),
        length_maximal=lengths[Rule.MAXIMAL],
        length_sparse=lengths[Rule.SPARSE],
        length_coupled=lengths[Rule.COUPLED],
        length_greedy=lengths[Rule.GREEDY],
        measured_coupled=_measured(measured, "coupled"),
        measured_rejection=_measured(measured, "rejection"),
        measured_block=_measured(measured, "block"),
    )


def _mean(values: Iterable[float]) -> float | None:
    collected = list(values)
    return float(np.mean(collected)) if collected else None


def _lengths(traces: Sequence[Trace]) -> list[float | None]:
    """Mean acceptance length by rule, over all rounds of all texts."""
    counted = [trace.rounds for trace in traces if trace.rounds is not None]
    if not counted:
        return [None] * len(RULES)
    totals: NDArray[np.float64] = np.sum(counted, axis=0)
    return [float(tokens / rounds) if rounds > 0 else None for tokens, rounds in totals]


def _sums(trace: Trace) -> tuple[float, int]:
    """Summed maximal acceptance of one text, and over how many positions."""
    values = [p.overlap.expected[0] for p in trace.positions if p.overlap is not None]
    return sum(values), len(values)


def _error_of_mean(sums: Sequence[tuple[float, int]]) -> float | None:
    """Standard error of a ratio of sums over independent texts, to first order; None below two."""
    used = [(total, count) for total, count in sums if count]
    if len(used) < 2:
        return None
    total, count = sum(part for part, _ in used), sum(size for _, size in used)
    squares = sum((part - total / count * size) ** 2 for part, size in used)
    return math.sqrt(squares * len(used) / (len(used) - 1)) / count


def _measured(measured: Sequence[Measured], verification: str) -> float | None:
    used = [m for m in measured if m.verification == verification]
    num_rounds = sum(m.num_rounds for m in used)
    return sum(m.num_tokens for m in used) / num_rounds if num_rounds else None


def as_dict(row: Row) -> dict[str, object]:
    """A row for JSON and CSV, numbers to four decimals."""
    return {
        name: round(value, DECIMALS) if isinstance(value, float) else value
        for name, value in asdict(row).items()
    }


def to_csv(rows: Sequence[Row]) -> str:
    """All rows under a header of Row's fields; an undefined value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_dict(row) for row in rows)
    return text.getvalue()
