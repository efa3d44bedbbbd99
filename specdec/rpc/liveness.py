"""What is heard of one draft: its messages, its heartbeats, and what its silence means.

Runs beside the streams of a connection. A draft that is silent for a few heartbeats gets no
questions and keeps its sessions; one that stays silent is given up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from specdec.rpc import convert
from specdec.rpc.draft_member import Member
from specdec.rpc.draft_pool import DraftPool
from specdec.speculation.messages import Heartbeat
from specdec.v1 import draft_pb2, verify_pb2

logger = logging.getLogger(__name__)


class LostError(Exception):
    """The connection is gone or makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """A member silent for `suspect_after` heartbeats gets no questions; after `lost_after` the
    connection is given up."""

    heartbeat_s: float = 0.1
    suspect_after: int = 3
    lost_after: int = 20


class Liveness:
    """Of one connection, from its handshake to its loss. `on_due` is called when there is a
    heartbeat to send (`take_heartbeat`)."""

    def __init__(
        self,
        member: Member,
        pool: DraftPool,
        settings: LivenessSettings,
        on_due: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._member = member
        self._pool = pool
        self._settings = settings
        self._on_due = on_due
        self._last_heard_s = time.monotonic()
        self._due: Heartbeat | None = None
        self._clock_ns = clock_ns
        self._num_beats = 0
        self._sent_ns: dict[int, int] = {}

    def heard(self, num_records: int) -> None:
        """The draft said something. Raises LostError for one that says more than it was asked."""
        if not self._member.spend(num_records):
            raise LostError("it sends more than it was asked for")
        self._last_heard_s = time.monotonic()
        if self._member.suspect:
            self._pool.member_suspect(self._member, False)

    def take(self, wire: draft_pb2.SpeculateResponse | verify_pb2.VerifyRequest) -> None:
        """All that a message says. Raises LostError for one that no draft sends."""
        fault = convert.ready_fault(wire)
        if fault is not None:
            raise LostError(fault)
        self.heard(len(wire.proposals) + len(wire.resyncs))
        for message in convert.ready_from_wire(wire):
            self._pool.receive(self._member, message)
        if wire.HasField("heartbeat"):
            self.heard_heartbeat(convert.heartbeat_from_wire(wire.heartbeat))

    def heard_heartbeat(self, beat: Heartbeat) -> None:
        """The draft's load, and its echo of one of ours. Which one is its word; when that was sent
        is known here."""
        sent_ns = self._sent_ns.pop(beat.sequence_number, None)
        round_trip_s = (self._clock_ns() - sent_ns) / 1e9 if sent_ns is not None else None
        self._pool.heartbeat(self._member, beat, round_trip_s)

    def beat(self) -> None:
        """Make a heartbeat due, in place of one that was not sent yet."""
        self._num_beats += 1
        self._due = Heartbeat(self._num_beats, 0)

    def take_heartbeat(self) -> Heartbeat | None:
        beat, self._due = self._due, None
        if beat is not None:
            beat.sent_ns = self._clock_ns()
            self._sent_ns[beat.sequence_number] = beat.sent_ns
            self._member.told(1)
            if len(self._sent_ns) > self._settings.lost_after:
                del self._sent_ns[next(iter(self._sent_ns))]
        return beat

    async def run(self) -> None:
        """Raises LostError once the draft has been silent for too long.

        A stall of our own loop is not held against the draft.
        """
        period_s = self._settings.heartbeat_s
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(period_s)
            now_s = time.monotonic()
            if now_s - before_s > 2 * period_s:
                self._last_heard_s = now_s
            self.beat()
            self._judge(now_s - self._last_heard_s)
            self._pool.flush_old_commits()
            self._on_due()

    def _judge(self, silent_s: float) -> None:
        period_s = self._settings.heartbeat_s
        if silent_s > self._settings.lost_after * period_s:
            raise LostError(f"silent for {silent_s:.1f} s")
        # The answer to the newest heartbeat is still under way, hence one more period.
        is_suspect = silent_s > (self._settings.suspect_after + 1) * period_s
        if is_suspect and not self._member.suspect:
            logger.warning("draft %s is silent, k = 0 for now", self._member.replica_id)
            self._pool.member_suspect(self._member, True)
