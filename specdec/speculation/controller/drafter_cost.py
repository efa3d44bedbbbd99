"""What drafting with one drafter costs: the wait that a step sees, and the time that it does not.

Exposed is what steps waited; hidden is what the draft computed and the network carried while the
target was busy. Hidden time is free, unless other targets want the same draft. Knows seconds only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.interface import DrafterTiming
from specdec.speculation.controller.latency_curve import LatencyCurve
from specdec.speculation.controller.policy import ProposeCost

Floats = NDArray[np.float64]

MEAN_RATE = 0.1
NETWORK_WINDOW = 256
# A draft busy for this part of its time is no bottleneck yet, and from that part on it is one.
FREE_BUSY, FULL_BUSY = 0.7, 0.95
# Smaller changes of price and drift are not worth making the curve anew.
PRICE_STEP, DRIFT_STEP = 0.02, 0.005


class Quantiles:
    """Of the last NETWORK_WINDOW values."""

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._window)

    def add(self, value: float) -> None:
        """The newest value; the oldest leaves."""
        if len(self._window) == NETWORK_WINDOW:
            del self._sorted[bisect_left(self._sorted, self._window.popleft())]
        self._window.append(value)
        insort(self._sorted, value)

    def at(self, share: float) -> float:
        """The least value that `share` of all do not exceed; 0 where there is none."""
        if not self._sorted:
            return 0.0
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]


def capacity_price(busy_fraction: float, num_targets: int) -> float:
    """The part of a draft's computing time that is charged though no step waits for it, 0 to 1.

    The price of the draft, in seconds: 0 while the draft has idle time, rising to what a second
    taken costs the others where it is the bottleneck. The own share of that damage, one in
    `num_targets`, comes back as exposed waiting and is charged there.
    """
    scarcity = (busy_fraction - FREE_BUSY) / (FULL_BUSY - FREE_BUSY)
    return min(max(scarcity, 0.0), 1.0) * (1 - 1 / max(num_targets, 1))


class DrafterCost:
    """Curves of exposed and of computing time over (depth, draft tokens), and the network's.

    max_k: the deepest depth asked for. is_flat: depth costs nothing, as with lookup.
    """

    def __init__(self, max_k: int, is_flat: bool = False) -> None:
        self._depths = np.arange(max_k + 1)
        self._is_flat = is_flat
        self.exposed = LatencyCurve(0.0, starts_at_zero=True)
        self.draft = LatencyCurve(0.0, starts_at_zero=True)
        self.network = Quantiles()
        self.price = 0.0
        self.exposed_s = 0.0
        self._round_s = 0.0
        self._charged: ProposeCost | None = None
        self._charged_revision: tuple[int, int, float] | None = None
        self._charged_drift = 1.0

    @property
    def hidden_s(self) -> float:
        """Draft and network time of a round that ran while no step waited, a running mean."""
        return max(self._round_s - self.exposed_s, 0.0)

    @property
    def charged(self) -> ProposeCost:
        """Seconds that a step is charged for drafting: those waited, and of the draft's others
        the part that `capacity_price` says. Needs one wait observed or seeded."""
        revision = (self.exposed.revision, self.draft.revision, self.price)
        moved = abs(self.exposed.drift - self._charged_drift) > DRIFT_STEP * self._charged_drift
        if self._charged is None or revision != self._charged_revision or moved:
            self._charged = self._charge()
            self._charged_revision, self._charged_drift = revision, self.exposed.drift
        return self._charged

    def _charge(self) -> ProposeCost:
        by_depth = self._over_depth(self.exposed)
        per_token_s = self.exposed.at(0, 1)
        if self.price > 0 and self.draft.count:
            unseen = self._over_depth(self.draft) - by_depth
            by_depth = np.maximum.accumulate(by_depth + self.price * np.maximum(unseen, 0.0))
            per_token_s += self.price * max(self.draft.at(0, 1) - per_token_s, 0.0)
        return ProposeCost(by_depth, per_token_s, self._is_flat)

    def _over_depth(self, curve: LatencyCurve) -> Floats:
        seconds = curve.predict(self._depths, 0)
        seconds[0] = 0.0
        return seconds

    def wait_s(self, depth: int, num_draft_tokens: int) -> float:
        """Seconds that a step usually waits; needs one wait."""
        if depth == 0:
            return 0.0
        return self.exposed.at(depth, 0) + self.exposed.at(0, 1) * num_draft_tokens

    @property
    def jitter_s(self) -> float:
        """How much longer than usual the network takes in one round of twenty."""
        return self.network.at(0.95) - self.network.at(0.5)

    def seed(self, rounds: list[tuple[int, int, float]]) -> None:
        """(depth, draft tokens, seconds) of rounds that a step waited for from end to end."""
        self.exposed.seed(rounds)

    def observe_wait(self, depth: int, num_draft_tokens: int, seconds: float) -> None:
        """A step asked for this and waited so long."""
        self.exposed.observe(depth, num_draft_tokens, seconds)
        self.exposed_s += MEAN_RATE * (seconds - self.exposed_s)

    def observe_timing(self, timing: DrafterTiming, asked: tuple[int, int] | None) -> None:
        """What the proposer measured of a round: `asked` = (depth, draft tokens) of it, None where
        no round was answered and only the network was heard of."""
        if timing.network_s is not None:
            self.network.add(timing.network_s)
        if asked is not None and timing.draft_s is not None:
            self.draft.observe(*asked, timing.draft_s)
            round_s = timing.draft_s + (timing.network_s or 0.0)
            self._round_s += MEAN_RATE * (round_s - self._round_s)
        price = capacity_price(timing.busy_fraction, timing.num_targets)
        if abs(price - self.price) > PRICE_STEP or price == 0:
            self.price = price
