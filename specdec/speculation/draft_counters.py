"""What happened between a target and its drafts, counted for metrics.

Plain numbers that only grow, apart from the round-trip estimate; the deployment exports them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCounters:
    """num_asks: times a sequence was asked for k > 0 tokens.
    num_hits / num_misses: asks that had draft tokens when the step went on, and that had none.
    num_late: proposals that came after their step had gone on without them.
    num_late_used: of those, the ones whose tokens still extended the text in a later step.
    num_stale: proposals dropped since the text went another way, or the epoch is over.
    num_resyncs: sessions that had to be sent again as a whole. num_disconnects: links lost.
    faults: dropped or truncated proposals by reason. declines: answers without tokens by reason.
    round_trip_ms: smoothed time from a heartbeat to its echo, of our own drafts.
    """

    num_asks: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_late: int = 0
    num_late_used: int = 0
    num_stale: int = 0
    num_duplicates: int = 0
    num_resyncs: int = 0
    num_disconnects: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    declines: Counter[str] = field(default_factory=Counter)
    round_trip_ms: float = 0.0

    def observe_round_trip(self, milliseconds: float) -> None:
        self.round_trip_ms = smooth(self.round_trip_ms, milliseconds)


def smooth(old: float, new: float, weight: float = 0.1) -> float:
    """A running mean; `old` is 0 before the first value."""
    return new if old == 0 else old + weight * (new - old)
