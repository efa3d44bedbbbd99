"""What speculation costs requests that wait for their first token.

Sees step times and first tokens. What follows from it is the guard's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from statistics import median

MAX_RISE = 1.05
WINDOW = 32
MIN_FIRST_TOKENS = 16
MAX_STEPS = 8192


class FirstTokenWatch:
    """Keeps how much longer steps took because of drafting, and what of that each first token
    waited for.

    The time that speculation added is the step's less that predicted of the same step without draft
    tokens. A first token after t seconds, e of them added, would have come after t - e: shorter
    queues by faster decoding are not counted in its favour.
    """

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MAX_STEPS)
        self._added_s: deque[float] = deque(maxlen=MAX_STEPS)
        self._total_s = 0.0
        self._rises: deque[float] = deque(maxlen=WINDOW)

    def observe(self, added_s: float, waited_s: tuple[float, ...], now_s: float) -> None:
        """A step ended now. added_s: by which drafting prolonged it. waited_s: since arrival, of
        requests whose first token it brought."""
        self._total_s += max(added_s, 0.0)
        self._times_s.append(now_s)
        self._added_s.append(self._total_s)
        for seconds in waited_s:
            added = self._total_s - self._total_at(now_s - seconds)
            self._rises.append(seconds / max(seconds - added, 1e-9))

    def _total_at(self, time_s: float) -> float:
        index = bisect_right(self._times_s, time_s)
        return self._added_s[index - 1] if index else self._added_s[0] if self._added_s else 0.0

    @property
    def rise(self) -> float:
        """Median of first-token times over those without speculation, 1 where too few are known."""
        return median(self._rises) if len(self._rises) >= MIN_FIRST_TOKENS else 1.0

    def take_alarm(self) -> bool:
        """Whether first tokens come more than MAX_RISE later; asked once, it is forgotten."""
        if self.rise <= MAX_RISE:
            return False
        self._rises.clear()
        return True
