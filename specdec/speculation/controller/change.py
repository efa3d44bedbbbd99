"""Whether a drafter's acceptance has changed for good, told from chance (CUSUM, Page 1954).

Sees differences between outcomes and estimates only. What follows from a change is decided
elsewhere.
"""

from __future__ import annotations

SLACK = 0.12
THRESHOLD = 10.0


class ChangeDetector:
    """Sums (accepted - expected) of first draft tokens, less SLACK each, in both directions.

    Raises an alarm when a sum passes THRESHOLD. Bound on false alarms: with outcomes of variance
    v <= 1/4 around a right estimate the sum must climb THRESHOLD against a drift of -SLACK, which
    happens about once in (v / (2 SLACK^2)) exp(2 SLACK THRESHOLD / v) proposals (Siegmund 1985,
    Brownian approximation): once in 128,000 at v = 1/4, once in 18 million at v = 0.16. A drop of
    acceptance by d is found after about THRESHOLD / (d - SLACK) proposals: 17 for 0.8 -> 0.1.
    """

    def __init__(self) -> None:
        self.num_changes = 0
        self._up = self._down = 0.0

    def observe(self, surprise: float, count: int) -> bool:
        """`surprise`: sum over `count` proposals of accepted (0 or 1) less its expectation."""
        self._up = max(0.0, self._up + surprise - SLACK * count)
        self._down = max(0.0, self._down - surprise - SLACK * count)
        if max(self._up, self._down) < THRESHOLD:
            return False
        self.num_changes += 1
        self._up = self._down = 0.0
        return True
