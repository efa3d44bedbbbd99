"""How long the depth of drafting is kept: so that K does not flap on noise, at a bounded price.

Sees what keeping gives up, as the policy tells it, and nothing of why.
"""

from __future__ import annotations

from specdec.speculation.controller.policy import Decision

# Steps' worth of goodput that keeping a depth may give up before it is chosen anew.
MAX_REGRET = 0.1
DECAY = 0.98
# Between two looks at every depth only the neighbours of the kept one are compared.
SCAN_EVERY = 16


class DepthKeeper:
    """Keeps a depth until what that gave up, decayed by step, passes MAX_REGRET.

    A better depth that promises 10 % more is taken in the next step, one that promises 1 % after
    12. What is given up for ever is less than MAX_REGRET (1 - DECAY) = 0.2 % of goodput; a
    change costs at least MAX_REGRET of a step before it, so that noise of 0.2 % never makes one.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._regret = 0.0
        self._elsewhere = 0.0
        self._steps_to_scan = 0

    def kept(self) -> int | None:
        """The depth to keep; None where it is to be chosen."""
        return self._depth if self._depth and self._regret < MAX_REGRET else None

    @property
    def is_scan_due(self) -> bool:
        """Whether the next decision is to look at every depth."""
        return self._steps_to_scan <= 0

    def observe(self, decision: Decision) -> None:
        """A step was decided."""
        if self.is_scan_due:
            self._elsewhere = decision.regret
            self._steps_to_scan = SCAN_EVERY
        self._steps_to_scan -= 1
        if decision.depth != self._depth:
            self._depth, self._regret, self._elsewhere = decision.depth, 0.0, 0.0
        else:
            self._regret = DECAY * self._regret + max(decision.regret, self._elsewhere)
