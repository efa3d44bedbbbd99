"""How much of a server's time goes into reading what one peer sends.

A bucket of seconds, measured and not counted, so that it holds on a busy machine too. It refuses
nothing: who takes more than its share is read later, and its own sending waits by flow control.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Of the loop's time, for reading what all peers send. What is read is work for the draft's thread
# as well, about as much again.
READING_SHARE = 0.4
BURST_S = 0.02


class Pace:
    """Of one peer; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowance_s = BURST_S
        self._since_s = clock()

    def spend(self, took_s: float, num_peers: int) -> float:
        """Reading a message took so long; seconds to wait before the next one is read. A peer
        that is alone never waits."""
        if num_peers <= 1:
            return 0.0
        share = READING_SHARE / num_peers
        now_s = self._clock()
        grown_s = self._allowance_s + (now_s - self._since_s) * share
        self._since_s = now_s
        self._allowance_s = min(grown_s, BURST_S) - took_s
        return max(0.0, -self._allowance_s / share)
