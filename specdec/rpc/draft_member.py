"""One draft replica as a target's pool keeps it: what it said of itself, and what waits for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specdec.speculation.messages import Close, DraftInfo, Heartbeat, Open, TargetMessage

# A draft answers what it is told, and a little more: ready, evicted, out of step. One that sends
# without end would take the loop, on which all drafts are heard, from the others.
ANSWERS_PER_MESSAGE = 4
BURST = 16_384


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a target has to do with a draft replica: its sessions there, the heartbeat's echo."""

    num_sessions: int
    round_trip_s: float | None


@dataclass(slots=True, eq=False)
class Member:
    """One draft replica, or (not `trusted`) a drafter that dialled in.

    `info` is None while it is not connected; `fault` says why it cannot be used. Messages for it
    wait in `step_messages` (Speculate) and `bulk_messages` (Sync). `round_trip_s`: smoothed time of
    a heartbeat's echo. `credit`: records that it may still send unasked.
    """

    replica_id: str
    trusted: bool = True
    info: DraftInfo | None = None
    suspect: bool = False
    draining: bool = False
    fault: str | None = None
    load: Heartbeat | None = None
    round_trip_s: float | None = None
    credit: int = BURST
    step_messages: list[TargetMessage] = field(default_factory=list)
    bulk_messages: deque[Open | Close] = field(default_factory=deque)

    def told(self, num_messages: int) -> None:
        """So many messages go out to it, and allow it answers."""
        self.credit = min(self.credit + ANSWERS_PER_MESSAGE * num_messages, BURST)

    def spend(self, num_records: int) -> bool:
        """It sent a message of so many records; False where nobody asked for so much."""
        self.credit -= 1 + num_records
        return self.credit >= 0

    @property
    def takes_sessions(self) -> bool:
        return self.info is not None and not self.draining

    @property
    def is_silent(self) -> bool:
        """Whether a replica that was heard of, and did not say that it leaves, is not heard now."""
        is_lost = self.info is None and self.load is not None and not self.draining
        return self.suspect or is_lost
