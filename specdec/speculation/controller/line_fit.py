"""The least-squares line under a latency curve: seconds over (x, y), slopes not negative.

Errors count relative to the time, else long prefill steps alone would place the line; old
measurements fade. It answers for what no cell of the curve was measured at.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE_DECAY = 0.995
RIDGE_X, RIDGE_Y = 1.0, 16.0


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = intercept + slope_x x + slope_y y. reliability: 0 where slope_x is the prior's
    alone, towards 1 as x has varied."""

    intercept: float
    slope_x: float
    slope_y: float
    reliability: float


class LineFit:
    """Decayed sums of the products of (1, x, y, seconds), each weighted with 1 / seconds^2.

    relative_slope, starts_at_zero: as in LatencyCurve; they make the slope until x has varied.
    """

    def __init__(self, relative_slope: float, starts_at_zero: bool) -> None:
        self._relative_slope = relative_slope
        self._starts_at_zero = starts_at_zero
        self._kept: tuple[float, float] | None = None
        self._num = 0.0
        self._w = self._x = self._y = self._t = 0.0
        self._xx = self._xy = self._yy = self._xt = self._yt = 0.0

    def add(self, x: float, y: float, seconds: float) -> None:
        """One measurement."""
        weight = 1 / max(seconds, 1e-6) ** 2
        wx, wy = weight * x, weight * y
        keep = LINE_DECAY
        self._num = self._num * keep + 1
        self._w = self._w * keep + weight
        self._x = self._x * keep + wx
        self._y = self._y * keep + wy
        self._t = self._t * keep + weight * seconds
        self._xx = self._xx * keep + wx * x
        self._xy = self._xy * keep + wx * y
        self._yy = self._yy * keep + wy * y
        self._xt = self._xt * keep + wx * seconds
        self._yt = self._yt * keep + wy * seconds

    def keep_slopes(self) -> None:
        """Take the present slopes for the prior from now on."""
        line = self.line()
        self._kept = line.slope_x, line.slope_y

    def line(self) -> Line:
        """Ridge regression towards the prior slopes. Needs one measurement."""
        total = self._w
        mean_x, mean_y, mean_t = self._x / total, self._y / total, self._t / total
        prior_x, prior_y = self._kept or (self._prior_slope(mean_x, mean_t), 0.0)
        unit = total / self._num
        ridge_x, ridge_y = RIDGE_X * unit, RIDGE_Y * unit
        own_var_x = self._xx - self._x * mean_x
        var_x, var_y = own_var_x + ridge_x, self._yy - self._y * mean_y + ridge_y
        cov_xy = self._xy - self._x * mean_y
        cov_xt = self._xt - self._x * mean_t + ridge_x * prior_x
        cov_yt = self._yt - self._y * mean_t + ridge_y * prior_y
        slope_x, slope_y = _solve(var_x, var_y, cov_xy, cov_xt, cov_yt)
        intercept = mean_t - slope_x * mean_x - slope_y * mean_y
        return Line(intercept, slope_x, slope_y, max(own_var_x, 0.0) / var_x)

    def _prior_slope(self, mean_x: float, mean_t: float) -> float:
        if self._starts_at_zero:
            return mean_t / mean_x if mean_x > 0 else 0.0
        return mean_t * self._relative_slope / (1 + self._relative_slope * max(mean_x - 1, 0.0))


def _solve(
    var_x: float, var_y: float, cov_xy: float, cov_xt: float, cov_yt: float
) -> tuple[float, float]:
    """Both slopes; where one would be negative it is 0, and the other alone explains the time."""
    determinant = var_x * var_y - cov_xy * cov_xy
    slope_x = (cov_xt * var_y - cov_yt * cov_xy) / determinant
    slope_y = (cov_yt * var_x - cov_xt * cov_xy) / determinant
    if slope_y < 0:
        slope_x, slope_y = cov_xt / var_x, 0.0
    elif slope_x < 0:
        slope_x, slope_y = 0.0, cov_yt / var_y
    return max(slope_x, 0.0), max(slope_y, 0.0)
