"""Never slower than no speculation: measured speed against the measured baseline.

Looks at whole windows of steps and at nothing else, so that it also catches what the estimates
get wrong.
"""

from __future__ import annotations

import math
from collections import Counter

SLOWER, FIRST_TOKENS_LATER = "slower_than_baseline", "first_tokens_later"
TRIP_RATIO = 0.98
WINDOW_S = 2.0
WINDOW_STEPS = 50
MAX_WINDOWS = 4
STANDARD_ERRORS = 2.5
COOL_DOWN_S = 5.0
MAX_COOL_DOWN_S = 300.0
FORGIVEN_AFTER_WINDOWS = 20


class Guard:
    """Switches speculation off for a while when it was slower than the baseline.

    A window whose ratio is below TRIP_RATIO by chance alone is prolonged: at one sequence, 50
    steps tell the ratio to about 5 %. The cool-down doubles with each trip, so that their number
    grows only with the logarithm of time, and falls back after a long good run.
    """

    def __init__(self) -> None:
        self.trips: Counter[str] = Counter({SLOWER: 0, FIRST_TOKENS_LATER: 0})  # by reason
        self.ratio = 1.0
        self.reason = ""  # of the last trip
        self._cool_down_s = COOL_DOWN_S
        self._off_until_s = float("-inf")
        self._good_windows = 0
        self._start_window()

    @property
    def num_trips(self) -> int:
        return self.trips.total()

    def _start_window(self) -> None:
        self._steps = self._num_looks = 0
        self._baseline_s = self._measured_s = 0.0
        self._sum_squares = 0.0

    def is_off(self, now_s: float) -> bool:
        return now_s < self._off_until_s

    def observe(self, baseline_s: float, measured_s: float, now_s: float) -> None:
        """One speculating step: the seconds it took, and those that its committed tokens would
        have taken without speculation."""
        self._steps += 1
        self._baseline_s += baseline_s
        self._measured_s += measured_s
        self._sum_squares += (baseline_s - TRIP_RATIO * measured_s) ** 2
        windows = self._num_looks + 1
        if self._steps < windows * WINDOW_STEPS or self._measured_s < windows * WINDOW_S:
            return
        self._num_looks += 1
        self.ratio = self._baseline_s / self._measured_s
        if self.ratio >= TRIP_RATIO:
            self._pass()
        elif self._is_certain():
            self.trip(SLOWER, now_s)

    def _is_certain(self) -> bool:
        """Whether the ratio is below TRIP_RATIO by more than chance, or nobody waits longer."""
        surplus = self._baseline_s - TRIP_RATIO * self._measured_s
        variance = self._sum_squares - surplus**2 / self._steps
        certain = surplus + STANDARD_ERRORS * math.sqrt(max(variance, 0.0)) < 0
        return certain or self._num_looks >= MAX_WINDOWS

    def trip(self, reason: str, now_s: float) -> None:
        """Switch off for a while."""
        self.trips[reason] += 1
        self.reason = reason
        self._good_windows = 0
        self._off_until_s = now_s + self._cool_down_s
        self._cool_down_s = min(2 * self._cool_down_s, MAX_COOL_DOWN_S)
        self._start_window()

    def _pass(self) -> None:
        self._good_windows += 1
        if self._good_windows >= FORGIVEN_AFTER_WINDOWS:
            self._cool_down_s = COOL_DOWN_S
        self._start_window()
