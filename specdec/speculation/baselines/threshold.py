"""The folk rule: K by thresholds on a request's recent acceptance rate.

Knows what each request accepted; neither load nor time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specdec.speculation.baselines.base import RequestBaseline

START_K = 5
WINDOW_ROUNDS = 10
HIGHEST_K, LOWER_K, LOWEST_K = 10, 3, 2


@dataclass(slots=True)
class _Request:
    k: int = START_K
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_ROUNDS))


class ThresholdPolicy(RequestBaseline[_Request]):
    """With the mean of accepted / drafted over the request's last 10 rounds, after every round:

    above 0.8: K + 2, at most 10; above 0.6: as it is; above 0.4: K - 1, at least 3;
    from 0.3: K - 2, at least 2; below 0.3: K = 0.

    The rule leaves two things open. A request starts at K = 5, the usual setting, and is judged
    once it has 10 rounds: of fewer, one unlucky first token would end speculation. And after
    K = 0 there are no rounds to judge by, so that a request stays off until it ends; new
    requests begin anew. A round without a proposal is none.
    """

    name = "threshold"

    def _start(self) -> _Request:
        return _Request()

    def _k(self, request: _Request) -> int:
        return request.k

    def _update(self, request: _Request, num_drafted: int, num_accepted: int) -> None:
        request.rates.append(num_accepted / num_drafted)
        if len(request.rates) == WINDOW_ROUNDS:
            request.k = next_k(request.k, sum(request.rates) / WINDOW_ROUNDS)


def next_k(k: int, rate: float) -> int:
    """The rule for one round; `rate` is the mean acceptance rate of the window."""
    if rate > 0.8:
        return min(k + 2, HIGHEST_K)
    if rate > 0.6:
        return k
    if rate > 0.4:
        return max(k - 1, LOWER_K)
    return max(k - 2, LOWEST_K) if rate >= 0.3 else 0
