"""Seconds as a linear function of a few quantities, fitted by least squares as they come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Directions in which the quantities vary less than this, relative to the most varied, are noise.
MIN_SINGULAR = 1e-8


class LinearTimes:
    """Ordinary least squares with an intercept, from running means and co-moments.

    Memory does not grow with the observations. Quantities that never varied get no slope: their
    part is in the intercept.
    """

    def __init__(self, num_features: int) -> None:
        self.count = 0
        self._mean = np.zeros(num_features + 1)
        self._moments = np.zeros((num_features + 1, num_features + 1))
        self._slopes: Floats | None = None

    def observe(self, features: tuple[float, ...], seconds: float) -> None:
        row = np.array([*features, seconds])
        self.count += 1
        before = row - self._mean
        self._mean += before / self.count
        self._moments += np.outer(before, row - self._mean)
        self._slopes = None

    def predict(self, features: tuple[float, ...]) -> float:
        """Seconds, at least 0; needs one observation."""
        assert self.count, "nothing observed yet"
        if self._slopes is None:
            self._slopes = self._fit()
        offset = np.array(features) - self._mean[:-1]
        return max(float(self._mean[-1] + self._slopes @ offset), 0.0)

    def _fit(self) -> Floats:
        covariance, response = self._moments[:-1, :-1], self._moments[:-1, -1]
        spread = np.sqrt(np.diag(covariance))
        scale = np.where(spread > 0, spread, 1.0)
        scaled = covariance / np.outer(scale, scale)
        slopes: Floats = np.linalg.lstsq(scaled, response / scale, rcond=MIN_SINGULAR)[0] / scale
        return slopes
