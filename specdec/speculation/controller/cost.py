"""What a step costs: seconds of the target and of each drafter, learned while they run.

Knows times, tokens and KV lengths. Nothing here looks at acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.speculation.controller.acceptance import prior_of
from specdec.speculation.controller.policy import ProposeCost
from specdec.speculation.controller.profile import CostSeed, ProfilePoint

Floats = NDArray[np.float64]

EXACT_BUCKETS = 32
BUCKETS_PER_OCTAVE = 8
MIN_OF_FIRST = 3
TRUSTED = 8
CELL_RATE = 0.05
DRIFT_RATE = 0.1
LINE_DECAY = 0.995
LINE_WEIGHT = 4.0
RIDGE_X, RIDGE_Y = 1.0, 16.0
HALF_LIFE_STEPS = 512.0
MAX_SURPRISE = 2.0
# A row more costs about this part of a step while the step reads weights, not rows.
RELATIVE_TOKEN_S = 0.04


@dataclass(slots=True)
class _Cell:
    """Time measured around one x, in seconds over the drift of that moment."""

    x: float
    y: float
    seconds: float
    count: float
    step: int


@dataclass(slots=True)
class _Knot:
    x: float
    seconds: float
    weight: float


def _not_decreasing(knots: list[_Knot]) -> Floats:
    """Isotonic regression (pool adjacent violators): more work never takes less time, whatever
    the noise says. Otherwise draft tokens would look free whose cell had a lucky start."""
    pools: list[tuple[float, float, int]] = []  # seconds, weight, knots
    for knot in knots:
        seconds, weight, size = knot.seconds, knot.weight, 1
        while pools and pools[-1][0] > seconds:
            other_s, other_weight, other_size = pools.pop()
            if math.isinf(other_weight):
                seconds = other_s
            else:
                seconds = (weight * seconds + other_weight * other_s) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        pools.append((seconds, weight, size))
    return np.array([seconds for seconds, _, size in pools for _ in range(size)])


class LatencyCurve:
    """Seconds over x (tokens, or draft depth), as measured, and linear in y (KV or draft tokens).

    One cell for each x (for each eighth of an octave above 32), since cost is a staircase and no
    formula knows where its steps are. Between cells it interpolates. Where measurements are few or
    old it leans on a least-squares line over (x, y). A common factor, the drift, follows what slows
    down everything alike, such as another tenant of the machine.
    """

    def __init__(self, relative_slope: float, starts_at_zero: bool) -> None:
        self.count = 0
        self.drift = 1.0
        self.relative_error = 0.0
        self._relative_slope = relative_slope
        self._starts_at_zero = starts_at_zero
        self._cells: dict[int, _Cell] = {}
        # Decayed sums of (1, x, y, t) by (1, x, y, t), each weighted with 1 / t^2: errors count
        # relative to the time, else long prefill steps alone would place the line.
        self._moments = np.zeros((4, 4))
        self._num_weighed = 0.0
        self._knots: tuple[Floats, Floats, float, float] | None = None

    def predict(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Seconds at each (x, y); needs one observation."""
        knots_x, knots_s, slope_x, slope_y = self._curve()
        at = np.asarray(x, dtype=np.float64)
        inside = np.interp(at, knots_x, knots_s)
        outside = np.maximum(at - knots_x[-1], 0) + np.minimum(at - knots_x[0], 0)
        seconds = inside + slope_x * outside + slope_y * np.asarray(y, dtype=np.float64)
        result: Floats = self.drift * np.maximum(seconds, 0.0)
        return result

    def observe(self, x: float, y: float, seconds: float) -> None:
        """Learn from one measurement. A wild one counts as twice, or half, what was expected."""
        bucket = _bucket(x)
        cell = self._cells.get(bucket)
        if cell and cell.count >= TRUSTED:
            expected = max(float(self.predict(x, y)), 1e-9)
            ratio = min(max(seconds / expected, 1 / MAX_SURPRISE), MAX_SURPRISE)
            self.relative_error += DRIFT_RATE * (abs(ratio - 1) - self.relative_error)
            seconds = ratio * expected
            self.drift *= ratio**DRIFT_RATE
        self.count += 1
        self._knots = None
        normal = seconds / self.drift
        row = np.array([1.0, x, y, normal])
        weight = 1 / max(normal, 1e-6) ** 2
        self._moments = self._moments * LINE_DECAY + weight * np.outer(row, row)
        self._num_weighed = self._num_weighed * LINE_DECAY + 1
        if cell is None:
            self._cells[bucket] = _Cell(x, y, normal, 1, self.count)
        else:
            self._update(cell, x, y, normal)

    def _update(self, cell: _Cell, x: float, y: float, seconds: float) -> None:
        cell.count += 1
        cell.step = self.count
        if cell.count <= MIN_OF_FIRST:
            # Noise only adds: the least of the first few is the best guess.
            if seconds < cell.seconds:
                cell.x, cell.y, cell.seconds = x, y, seconds
            return
        rate = max(CELL_RATE, 1 / (cell.count - MIN_OF_FIRST + 1))
        cell.x += rate * (x - cell.x)
        cell.y += rate * (y - cell.y)
        cell.seconds += rate * (seconds - cell.seconds)

    def _curve(self) -> tuple[Floats, Floats, float, float]:
        """(x, seconds at y = 0) of the knots, slope beyond them, slope over y; without drift."""
        if self._knots is None:
            assert self._cells, "nothing observed yet"
            slope_x, slope_y, intercept = self._line()
            cells = sorted(self._cells.values(), key=lambda cell: cell.x)
            knots = [_Knot(0.0, 0.0, math.inf)] if self._starts_at_zero else []
            for cell in cells:
                line = intercept + slope_x * cell.x
                knots.append(self._knot(cell, cell.seconds - slope_y * cell.y, line))
            seconds = _not_decreasing(knots)
            self._knots = (np.array([knot.x for knot in knots]), seconds, slope_x, slope_y)
        return self._knots

    def _knot(self, cell: _Cell, measured_s: float, line_s: float) -> _Knot:
        """The cell's own time, the more of the line's the fewer and older its measurements."""
        count = cell.count * 0.5 ** ((self.count - cell.step) / HALF_LIFE_STEPS)
        weight = count + LINE_WEIGHT
        return _Knot(cell.x, (count * measured_s + LINE_WEIGHT * line_s) / weight, weight)

    def _line(self) -> tuple[float, float, float]:
        """Least squares t = intercept + slope_x x + slope_y y, slopes not negative.

        Shrunk to the prior slope over x while x has hardly varied.
        """
        total, sum_x, sum_y, sum_t = self._moments[0]
        mean_x, mean_y, mean_t = sum_x / total, sum_y / total, sum_t / total
        centred = self._moments - np.outer(self._moments[0], self._moments[0]) / total
        unit = total / self._num_weighed
        var_x, var_y = centred[1, 1] + RIDGE_X * unit, centred[2, 2] + RIDGE_Y * unit
        cov_xt = centred[1, 3] + RIDGE_X * unit * self._prior_slope(mean_x, mean_t)
        cov_yt, cov_xy = centred[2, 3], centred[1, 2]
        determinant = var_x * var_y - cov_xy * cov_xy
        slope_x = (cov_xt * var_y - cov_yt * cov_xy) / determinant
        slope_y = (cov_yt * var_x - cov_xt * cov_xy) / determinant
        if slope_y < 0:
            slope_x, slope_y = cov_xt / var_x, 0.0
        elif slope_x < 0:
            slope_x, slope_y = 0.0, cov_yt / var_y
        slope_x, slope_y = max(slope_x, 0.0), max(slope_y, 0.0)
        return slope_x, slope_y, mean_t - slope_x * mean_x - slope_y * mean_y

    def _prior_slope(self, mean_x: float, mean_t: float) -> float:
        if self._starts_at_zero:
            return mean_t / mean_x if mean_x > 0 else 0.0
        return mean_t * self._relative_slope / (1 + self._relative_slope * max(mean_x - 1, 0.0))


def _bucket(x: float) -> int:
    if x <= EXACT_BUCKETS:
        return round(x)
    return EXACT_BUCKETS + round(BUCKETS_PER_OCTAVE * math.log2(x / EXACT_BUCKETS))


class CostModel:
    """Seconds of a step = the target's over (tokens, KV tokens) + each drafter's over its depth."""

    def __init__(self, max_k: int, profile: SequenceOf[ProfilePoint] = ()) -> None:
        self._max_k = max_k
        self._propose_costs: dict[str, ProposeCost] = {}
        self.run = LatencyCurve(RELATIVE_TOKEN_S, starts_at_zero=False)
        self._drafters: dict[str, LatencyCurve] = {}
        self.seed(CostSeed(steps=tuple(profile)))

    def seed(self, seed: CostSeed) -> None:
        """Start from times that were measured before."""
        for step in seed.steps:
            self.run.observe(step.num_tokens, step.num_kv_tokens, step.seconds)
        for drafter, rounds in seed.drafts.items():
            for point in rounds:
                amount = (point.depth, point.num_sequences * point.depth)
                self.observe_propose({drafter: amount}, point.seconds)

    def run_s(self, num_tokens: ArrayLike, num_kv_tokens: float) -> Floats:
        return self.run.predict(num_tokens, num_kv_tokens)

    def num_proposals(self, drafter: str) -> int:
        """How many steps this drafter's cost was learned from."""
        curve = self._drafters.get(drafter)
        return curve.count if curve else 0

    def propose_cost(self, drafter: str) -> ProposeCost:
        """Seconds that a step waits for a drafter: a batched draft runs as many steps as its
        deepest sequence has draft tokens. Unknown: a prior."""
        curve = self._drafters.get(drafter)
        depths = np.arange(self._max_k + 1)
        if curve is None:
            per_step = prior_of(drafter).relative_draft_s * float(self.run.predict(1, 0))
            return ProposeCost((per_step * depths).astype(np.float64), 0.0)
        if drafter not in self._propose_costs:
            by_depth = curve.predict(depths, 0)
            by_depth[0] = 0.0
            self._propose_costs[drafter] = ProposeCost(by_depth, float(curve.predict(0, 1)))
        return self._propose_costs[drafter]

    def propose_s(self, drafter: str, depth: int, num_draft_tokens: int) -> float:
        """Seconds waited for `num_draft_tokens` in all, at most `depth` for one sequence."""
        cost = self.propose_cost(drafter)
        return float(cost.by_depth[depth]) + cost.per_token_s * num_draft_tokens

    def propose_error(self, drafter: str) -> float:
        """Mean relative error of `propose_s`."""
        curve = self._drafters.get(drafter)
        return curve.relative_error if curve else 0.0

    def observe_run(self, num_tokens: int, num_kv_tokens: int, seconds: float) -> None:
        self.run.observe(num_tokens, num_kv_tokens, seconds)

    def observe_propose(self, asked: dict[str, tuple[int, int]], seconds: float) -> None:
        """Learn from one wait; `asked` maps drafter -> (depth, draft tokens).

        Of several drafters, each is charged what the others are not expected to take.
        """
        expected = {
            name: self.propose_s(name, depth, tokens) for name, (depth, tokens) in asked.items()
        }
        for name, (depth, tokens) in asked.items():
            others = sum(s for other, s in expected.items() if other != name)
            curve = self._drafters.setdefault(name, LatencyCurve(0.0, starts_at_zero=True))
            curve.observe(depth, tokens, max(seconds - others, 0.0))
            self._propose_costs.pop(name, None)
