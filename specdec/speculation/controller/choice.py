"""Which of several available drafters proposes for a sequence.

Compares what each promises at its best K, in tokens per second, and now and then tries one that
was long not chosen. Knows numbers only: estimates of acceptance and cost are other modules'.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Choices after which a drafter that lost all of them gets one: its estimates may be out of date.
RETRY_AFTER = 50


def best_goodput(survival: Floats, run_s: Floats, propose_s: Floats) -> float:
    """Tokens per second of a sequence at the best K, K = 0 included.

    survival: [max_k], chance that the first j draft tokens are accepted. run_s, propose_s:
    [max_k + 1], seconds of the target's step and of drafting at K = 0..max_k.
    """
    tokens = 1.0 + np.concatenate(([0.0], np.cumsum(survival)))
    return float(np.max(tokens / np.maximum(run_s + propose_s, 1e-9)))


class DrafterChooser:
    """Takes the most promising drafter, and remembers when each had its last turn."""

    def __init__(self) -> None:
        self._num_choices = 0
        self._last_turn: dict[str, int] = {}

    def choose(self, goodput: Mapping[str, float]) -> str:
        """`goodput` by name, the preferred one first: of equals it is taken."""
        self._num_choices += 1
        for name in goodput:
            self._last_turn.setdefault(name, self._num_choices)
        chosen = max(goodput, key=lambda name: goodput[name])
        forgotten = min(goodput, key=lambda name: self._last_turn[name])
        if self._num_choices - self._last_turn[forgotten] >= RETRY_AFTER:
            chosen = forgotten
        self._last_turn[chosen] = self._num_choices
        return chosen
