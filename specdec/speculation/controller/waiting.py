"""How long a step waits for proposals: about as long as they take, and never more than they give.

Knows expected times and their errors; whether drafting pays at all is the policy's decision.
"""

from __future__ import annotations

MARGIN = 1.5
ERRORS = 3.0
SLACK_S = 0.002
PATIENCE_DECAY = 0.9
TIMED_OUT = 0.95
MAX_PATIENCE = 1024.0


class WaitPolicy:
    """The limit of one wait. What is late twice may just be slow: each time-out doubles the next
    limit, since a wait cut short never shows how long the proposal would have taken."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._patience = 1.0
        self.limit_s = 0.0
        self.num_timeouts = 0

    def set(
        self,
        expected_s: float | None,
        relative_error: float,
        worth_s: float,
        jitter_s: float = 0.0,
        is_fixed: bool = False,
    ) -> None:
        """Set the limit of the coming step.

        expected_s: the usual time, None while unknown. jitter_s: what the network may take beyond
            its usual time, p95 - p50.
        worth_s: the time whose tokens the proposal can make up for. The usual time is sunk in the
            decision to ask; beyond it the step waits no longer than this.
        is_fixed: a client fixed what is asked for. It is asked for in every step, late or not, and
            so is given its usual time, but no patience.
        """
        limit = self._max_wait_s
        if expected_s is not None:
            usual = MARGIN * expected_s * (1 + ERRORS * relative_error)
            usual += max(SLACK_S, jitter_s)
            priced = expected_s + worth_s
            own = max(usual, priced) if is_fixed else min(usual * self._patience, priced)
            limit = min(limit, own)
        self.limit_s = limit

    def observe(self, waited_s: float) -> bool:
        """Learn from a wait for proposals that were asked for; whether it ran into the limit."""
        timed_out = waited_s >= TIMED_OUT * self.limit_s
        if timed_out:
            self.num_timeouts += 1
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        else:
            self._patience = max(1.0, PATIENCE_DECAY * self._patience)
        return timed_out
