"""What speculation costs requests that wait for their first token.

Sees step times and first tokens. What follows from it is the guard's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from statistics import median

MAX_RISE = 1.05
WINDOW = 256
MIN_FIRST_TOKENS = 64
MAX_STEPS = 8192
GAIN_RATE = 0.02


class FirstTokenWatch:
    """Keeps by how much steps took longer because of drafting, and how much of that each first
    token waited for.

    A first token after t seconds, e of them added by drafting, would have come after t - e. What a
    step adds is its time less that of the step that would have been there without: without draft
    tokens, and with more sequences, since a request that decodes g times as fast is there g times
    as shortly (Little's law). It may be negative.
    """

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MAX_STEPS)
        self._added_s: deque[float] = deque(maxlen=MAX_STEPS)
        self._total_s = 0.0
        self._gain = 1.0
        self._rises: deque[float] = deque(maxlen=WINDOW)

    @property
    def gain(self) -> float:
        """How many times as fast a sequence decodes as without speculation, at least 1."""
        return max(self._gain, 1.0)

    def observe_gain(self, gain: float) -> None:
        """One decoding step: tokens per second of a sequence over those without speculation."""
        self._gain += GAIN_RATE * (gain - self._gain)

    def observe(self, added_s: float, waited_s: tuple[float, ...], now_s: float) -> None:
        """A step ended now. added_s: by which drafting prolonged it. waited_s: since arrival, of
        requests whose first token it brought."""
        self._total_s += added_s
        self._times_s.append(now_s)
        self._added_s.append(self._total_s)
        for seconds in waited_s:
            added = self._total_s - self._total_at(now_s - seconds)
            self._rises.append(seconds / max(seconds - added, 1e-9))

    def _total_at(self, time_s: float) -> float:
        """What had been added until a moment; a step adds evenly while it runs."""
        right = bisect_right(self._times_s, time_s)
        if right == 0:
            return self._added_s[0]
        if right == len(self._times_s):
            return self._added_s[-1]
        start_s, end_s = self._times_s[right - 1], self._times_s[right]
        share = (time_s - start_s) / max(end_s - start_s, 1e-9)
        before, after = self._added_s[right - 1], self._added_s[right]
        return before + share * (after - before)

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
