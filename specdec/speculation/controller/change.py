"""Whether a drafter's acceptance has changed for good, told from chance (CUSUM, Page 1954).

Sees differences between outcomes and estimates only. What follows from a change is decided
elsewhere.
"""

from __future__ import annotations

import math

SLACK = 0.12
THRESHOLD = 10.0


class ChangeDetector:
    """Sums (accepted - expected) of first draft tokens, less SLACK each, in both directions.

    Raises an alarm when a sum passes THRESHOLD. False alarms around a right estimate, by the exact
    chain of the sums: once in 137,000 proposals at acceptance 0.5, where they are most frequent,
    once in 380,000 at 0.3 and 0.7, once in 2.2 million at 0.2 and 0.8. (Siegmund's Brownian
    approximation knows no skewness: it says 64,000 at 0.5, rightly a bound, but 9 million at 0.8.)
    A drop of acceptance by d is found after about THRESHOLD / (d - SLACK) proposals: 18 for
    0.8 -> 0.1.
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


# How much better the times are for which a drafter that was given up is tried.
HOPED_ODDS = 6.0
# One probe in so many, at most, is taken for better times by chance.
RARITY = 100.0


class WakeDetector:
    """Whether probes of a drafter that was given up succeed too often for what is believed of it.

    Sums log-likelihood ratios of their outcomes, odds HOPED_ODDS times as high against those that
    were believed, and raises an alarm past log(RARITY): on average at least RARITY probes from one
    false alarm to the next (Lorden 1971). Acceptance 0.8 where 0.3 was believed takes about 8.
    """

    def __init__(self) -> None:
        self._sum = 0.0

    def observe(self, believed: float, was_accepted: bool) -> bool:
        """`believed`: the chance of acceptance, in (0, 1)."""
        ratio = (HOPED_ODDS if was_accepted else 1.0) / (1.0 - believed + HOPED_ODDS * believed)
        self._sum = max(0.0, self._sum + math.log(ratio))
        if self._sum < math.log(RARITY):
            return False
        self._sum = 0.0
        return True
