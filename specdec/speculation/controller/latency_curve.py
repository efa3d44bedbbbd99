"""Seconds over an amount of work, as measured: a staircase, corrected by drift.

Knows pairs of work and seconds. Whose time it is, and what it is worth, is told elsewhere. Plain
floats: at this size one numpy call costs as much as the whole sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.speculation.controller.line_fit import Line, LineFit
from specdec.speculation.controller.staircase import bucket_of, not_decreasing, with_edges

Floats = NDArray[np.float64]

MIN_OF_FIRST = 3
TRUSTED = 8
CELL_RATE = 0.05
SURPRISE_WEIGHT = 10.0
# While predictions are this far off on one side, in logarithms, the drift is under way, and what is
# measured follows it. A line through that would take the one for the other, and a cell that took
# part of it would stand out from the cells that are not visited.
MAX_FIT_BIAS = 0.05
# What drifts comes back: by this power of itself with each measurement, so that a time that lasts
# becomes that of the cells that are visited, and the others are believed as they were measured.
DRIFT_RETURN = 0.002
REBASE_AFTER = 32
DRIFT_RATE = 0.1
LINE_WEIGHT = 4.0
HALF_LIFE_STEPS = 512.0
MAX_SURPRISE = 2.0
# A point that was measured at leisure, the least of several runs, counts as so many live ones.
SEED_COUNT = 16.0
# The knots are made anew when a cell moved by so much, or after so many steps in any case.
REFRESH_MOVED = 0.01
REFRESH_STEPS = 16


@dataclass(slots=True)
class _Cell:
    """Time measured around one x, in seconds over the drift of that moment."""

    x: float
    y: float
    seconds: float
    count: float
    step: int


@dataclass(frozen=True, slots=True)
class _Knots:
    """The staircase at y = 0, without drift, and the slopes beyond it."""

    x: list[float]
    seconds: list[float]
    line: Line
    arrays: tuple[Floats, Floats]

    def at(self, x: float) -> float:
        """Linear between two knots, along the line outside of them."""
        right = bisect_left(self.x, x)
        if right == len(self.x):
            return self.seconds[-1] + self.line.slope_x * (x - self.x[-1])
        if right == 0:
            return self.seconds[0] + self.line.slope_x * (x - self.x[0])
        low, high = self.x[right - 1], self.x[right]
        share = (x - low) / (high - low)
        return self.seconds[right - 1] + share * (self.seconds[right] - self.seconds[right - 1])


class LatencyCurve:
    """Seconds over x (tokens, or draft depth), as measured, and linear in y (KV or draft tokens).

    One cell for each x up to 32 and eight for each doubling above, their edges where tiles end (320
    ends a cell, as it ends a tile), since cost is a staircase and no formula knows where its steps
    are. Between cells it interpolates, so that a step is smeared over one cell at most. Where
    measurements are few or old it leans on a least-squares line over (x, y). A common factor, the
    drift, follows what slows down everything alike, such as another tenant of the machine.

    relative_slope: of the line while x has hardly varied, per unit of x and part of the time at
    x = 1. starts_at_zero: no work takes no time.
    """

    def __init__(self, relative_slope: float, starts_at_zero: bool) -> None:
        self.count = 0
        self.drift = 1.0
        self.relative_error = 0.0
        self._bias = 0.0
        self._starts_at_zero = starts_at_zero
        self._sizes: list[int] = []
        self._cells: dict[int, _Cell] = {}
        self._relative_slope = relative_slope
        self._fit = LineFit(relative_slope, starts_at_zero)
        self._seeds: list[tuple[float, float, float]] = []
        self._num_settled = 0
        self._knots: _Knots | None = None
        self._num_builds = 0
        self._moved = 0.0
        self._num_unseen = 0

    def pad_to(self, sizes: SequenceOf[int]) -> None:
        """From now on x is padded up to the next of these rising sizes, and costs what that one
        costs; beyond the last nothing is padded. Belongs before the first measurement."""
        self._sizes = list(sizes)

    # -- reading -------------------------------------------------------------------------------

    def predict(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Seconds at each (x, y); needs one measurement."""
        knots = self._current()
        at = self._padded_all(np.asarray(x, dtype=np.float64))
        inside = np.interp(at, *knots.arrays)
        outside = np.maximum(at - knots.x[-1], 0) + np.minimum(at - knots.x[0], 0)
        line = knots.line
        seconds = inside + line.slope_x * outside + line.slope_y * np.asarray(y, dtype=np.float64)
        result: Floats = self.drift * np.maximum(seconds, 0.0)
        return result

    @property
    def revision(self) -> int:
        """Changes when predictions do, their drift aside; 0 before the first measurement."""
        if self._cells:
            self._current()
        return self._num_builds

    def at(self, x: float, y: float) -> float:
        """`predict` for one point."""
        knots = self._current()
        return self.drift * max(knots.at(self._padded(x)) + knots.line.slope_y * y, 0.0)

    def _padded(self, x: float) -> float:
        index = bisect_left(self._sizes, x)
        return self._sizes[index] if index < len(self._sizes) else x

    def _padded_all(self, x: Floats) -> Floats:
        if not self._sizes:
            return x
        sizes = np.asarray(self._sizes, dtype=np.float64)
        index = np.searchsorted(sizes, x)
        return np.where(index < len(sizes), sizes[np.minimum(index, len(sizes) - 1)], x)

    # -- learning ------------------------------------------------------------------------------

    def seed(self, points: Iterable[tuple[float, float, float]]) -> None:
        """Take up (x, y, seconds) that were measured at leisure, each the least of several runs."""
        for x, y, seconds in points:
            x = self._padded(x)
            self._seeds.append((x, y, seconds))
            self.count += 1
            self._fit.add(x, y, seconds)
            cell = self._cells.setdefault(self._bucket(x), _Cell(x, y, seconds, 0.0, self.count))
            cell.count += SEED_COUNT
            self._blend(cell, x, y, seconds, SEED_COUNT / cell.count)
        if self._cells:
            self._fit.keep_slopes()
        self._knots = None

    def _rebase(self) -> None:
        """Take the drift that the first live steps showed for what sets this machine apart from the
        one that was measured at leisure: it is here to stay."""
        factor, self.drift = self.drift, 1.0
        for cell in self._cells.values():
            cell.seconds *= factor
        self._fit = LineFit(self._relative_slope, self._starts_at_zero)
        for x, y, seconds in self._seeds:
            self._fit.add(x, y, factor * seconds)
        self._fit.keep_slopes()
        self._seeds.clear()
        self._knots = None

    def observe(self, x: float, y: float, seconds: float) -> None:
        """Learn from one live measurement. A wild one counts as twice, or half, what was
        expected."""
        x = self._padded(x)
        bucket = self._bucket(x)
        cell = self._cells.get(bucket)
        if cell is not None and cell.count >= TRUSTED:
            seconds = self._follow_drift(x, y, seconds)
        self.count += 1
        normal = seconds / self.drift
        is_settled = abs(self._bias) < MAX_FIT_BIAS
        self._num_settled = self._num_settled + 1 if is_settled else 0
        if is_settled:
            self._fit.add(x, y, normal)
        if cell is None:
            self._cells[bucket] = _Cell(x, y, normal, 1.0, self.count)
            self._knots = None
        elif is_settled or cell.count < TRUSTED:
            self._update(cell, x, y, normal)
        if self._seeds and self._num_settled >= REBASE_AFTER:
            self._rebase()

    def _follow_drift(self, x: float, y: float, seconds: float) -> float:
        expected = max(self.at(x, y), 1e-9)
        ratio = min(max(seconds / expected, 1 / MAX_SURPRISE), MAX_SURPRISE)
        self.relative_error += DRIFT_RATE * (abs(ratio - 1) - self.relative_error)
        self._bias += DRIFT_RATE * (math.log(ratio) - self._bias)
        self.drift *= ratio**DRIFT_RATE * self.drift**-DRIFT_RETURN
        return ratio * expected

    def _update(self, cell: _Cell, x: float, y: float, seconds: float) -> None:
        cell.count += 1
        cell.step = self.count
        before = cell.seconds
        if cell.count > MIN_OF_FIRST:
            # While all seems wrong, the drift explains it; only what is left is the cell's.
            rate = CELL_RATE / (1 + SURPRISE_WEIGHT * self.relative_error)
            rate = max(rate, 1 / (cell.count - MIN_OF_FIRST + 1))
            self._blend(cell, x, y, seconds, rate)
        elif seconds < cell.seconds:
            # Noise only adds: the least of the first few is the best guess.
            cell.x, cell.y, cell.seconds = x, y, seconds
        self._moved += abs(cell.seconds / before - 1) if before > 0 else 1.0
        self._num_unseen += 1
        is_young = cell.count <= TRUSTED
        if is_young or self._moved > REFRESH_MOVED or self._num_unseen >= REFRESH_STEPS:
            self._knots = None

    @staticmethod
    def _blend(cell: _Cell, x: float, y: float, seconds: float, rate: float) -> None:
        cell.x += rate * (x - cell.x)
        cell.y += rate * (y - cell.y)
        cell.seconds += rate * (seconds - cell.seconds)

    def _bucket(self, x: float) -> int:
        """A number for the cell of x; a size to which others are padded has one of its own."""
        if self._sizes and x <= self._sizes[-1]:
            return -1 - bisect_left(self._sizes, x)
        return bucket_of(x)

    # -- the staircase -------------------------------------------------------------------------

    def _current(self) -> _Knots:
        if self._knots is None:
            assert self._cells, "nothing measured yet"
            self._knots = self._build()
            self._num_builds += 1
            self._moved, self._num_unseen = 0.0, 0
        return self._knots

    def _build(self) -> _Knots:
        line = self._fit.line()
        xs, seconds, weights = ([0.0], [0.0], [math.inf]) if self._starts_at_zero else ([], [], [])
        for cell in sorted(self._cells.values(), key=lambda cell: cell.x):
            if xs and cell.x <= xs[-1]:
                continue
            at_zero, weight = self._knot(cell, line)
            xs.append(cell.x)
            seconds.append(at_zero)
            weights.append(weight)
        xs, seconds = with_edges(xs, not_decreasing(seconds, weights))
        return _Knots(xs, seconds, line, (np.array(xs), np.array(seconds)))

    def _knot(self, cell: _Cell, line: Line) -> tuple[float, float]:
        """(seconds at y = 0, weight): the cell's own time, the more of the line's the fewer its
        measurements are. What was once well known stays known: there the line counts only as far
        as it is newer, and was measured, too."""
        freshness = 0.5 ** ((self.count - cell.step) / HALF_LIFE_STEPS)
        count, line_weight = cell.count * freshness, LINE_WEIGHT
        if cell.count >= TRUSTED:
            count = max(count, float(TRUSTED))
            line_weight *= line.reliability * (1 - freshness)
        measured_s = cell.seconds - line.slope_y * cell.y
        line_s = line.intercept + line.slope_x * cell.x
        weight = count + line_weight
        return (count * measured_s + line_weight * line_s) / weight, weight
