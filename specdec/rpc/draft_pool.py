"""The draft replicas that a target may use, and which session is at which of them.

Sessions are spread over the replicas and stay where they are; they move when their replica is
lost, leaves or drains. Everything is guarded by one lock, since the engine's thread asks and waits
while the link's event loop delivers. No gRPC here: links take messages out and put answers in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf

from specdec.rpc.draft_member import BURST, Member, MemberState
from specdec.rpc.round_times import RoundTimes
from specdec.sequence import Sequence
from specdec.speculation.controller.interface import DrafterTiming
from specdec.speculation.draft_counters import smooth
from specdec.speculation.draft_sessions import UNAVAILABLE, DraftSessions
from specdec.speculation.messages import (
    Close,
    Commit,
    DraftInfo,
    Heartbeat,
    Open,
    Proposal,
    Resync,
    TargetMessage,
)
from specdec.speculation.proposer import Committed, DraftTokens

NUM_TOKENS_BUFFERED = 32
SECONDS_BUFFERED = 0.5


class DraftPool:
    """Sessions of one target over its draft replicas. Every method may be called on any thread."""

    def __init__(self, vocab_size: int) -> None:
        self.sessions = DraftSessions(vocab_size)
        self.counters = self.sessions.counters
        self._round_times = RoundTimes()
        self.members: dict[str, Member] = {}
        self._answered = threading.Condition()
        self._awaited: dict[int, int] = {}
        self._next_flush_s = 0.0

    # The engine's side

    def open(self, sequences: SequenceOf[Sequence]) -> None:
        with self._answered:
            for sequence in sequences:
                self.sessions.add(sequence)
                self._assign(sequence.seq_id)

    def commit(self, results: SequenceOf[Committed]) -> bool:
        """Take in a step's outcome; True if messages are to be sent before the next `ask`."""
        must_send = False
        with self._answered:
            for result in results:
                self.sessions.commit(result)
                session = self.sessions.get(result.seq_id)
                if session is not None and session.num_unsent_tokens >= NUM_TOKENS_BUFFERED:
                    must_send |= self._flush(result.seq_id)
        return must_send

    def ask(self, ks: Mapping[int, int], wait_s: float, deadline_ms: float) -> None:
        """Queue one Commit for every sequence that is to get draft tokens.

        Where the step will not wait for the answer, it serves the next step: it must then reach
        beyond the tokens in hand, which are verified now, and the target's own token after them.
        """
        with self._answered:
            asked = []
            for seq_id, k in ks.items():
                if k <= 0 or not self._is_served(seq_id):
                    continue
                in_hand = self._num_in_hand(seq_id, k)
                ahead = 0 if wait_s > 0 and in_hand < k else in_hand + 1
                message = self.sessions.ask(seq_id, k + ahead, deadline_ms)
                self._post(seq_id, message)
                if isinstance(message, Commit) and self._is_ours(seq_id):
                    asked.append((seq_id, message.round, message.k))
            self._round_times.asked(asked)
            self._awaited = dict(ks)
            self._forget_answered()

    def collect(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        """Wait for the asked proposals, never longer than `wait_s`, and hand out what there is."""
        with self._answered:
            if self._awaited and wait_s > 0:
                self._answered.wait_for(lambda: not self._awaited, wait_s)
            self._awaited = {}
            return self.sessions.collect(
                {seq_id: k for seq_id, k in ks.items() if self._is_served(seq_id)}
            )

    def close(self, seq_ids: Iterable[int]) -> None:
        with self._answered:
            for seq_id in seq_ids:
                session = self.sessions.get(seq_id)
                member = self._member_of(seq_id)
                message = self.sessions.remove(seq_id)
                if session is None or member is None or message is None:
                    continue
                if session.opened:
                    member.step_messages.append(message)
                else:
                    member.bulk_messages.append(message)

    def available(self, seq_id: int) -> bool:
        with self._answered:
            return self._is_served(seq_id) and self.sessions.available(seq_id)

    def disabled_reason(self, seq_id: int) -> str | None:
        with self._answered:
            if seq_id in self.sessions and not self._is_served(seq_id):
                faults = [m.fault for m in self.members.values() if m.fault is not None]
                return faults[0] if faults else UNAVAILABLE
            return self.sessions.disabled_reason(seq_id)

    def take_timing(self, name: str) -> DrafterTiming:
        """What our own draft replicas took and how busy they are, measured since the last call.

        What drafters that dialled in say of themselves is no part of it.
        """
        with self._answered:
            finished, round_trip_s = self._round_times.take()
            ours = [member for member in self.members.values() if member.trusted]
            loads = [m.load for m in ours if m.info and m.load is not None]
            is_silent = any(member.is_silent for member in ours)
        return DrafterTiming(
            name,
            draft_s=finished.draft_s if finished else None,
            network_s=finished.network_s if finished else round_trip_s,
            asked=(finished.depth, finished.num_tokens) if finished else None,
            busy_fraction=max((1 - load.idle_fraction for load in loads), default=0.0),
            num_targets=max((load.num_targets for load in loads), default=1),
            is_silent=is_silent,
        )

    def loads(self) -> dict[str, Heartbeat]:
        """The last heartbeat of every connected replica of our own."""
        with self._answered:
            return {
                m.replica_id: m.load
                for m in self.members.values()
                if m.trusted and m.info and m.load is not None
            }

    def member_states(self) -> dict[str, MemberState]:
        """Of every connected replica."""
        with self._answered:
            return {
                m.replica_id: MemberState(self.sessions.num_at(m.replica_id), m.round_trip_s)
                for m in self.members.values()
                if m.info
            }

    # The links' side

    def add_member(self, replica_id: str, trusted: bool = True) -> Member:
        with self._answered:
            return self.members.setdefault(replica_id, Member(replica_id, trusted))

    def remove_member(self, member: Member) -> None:
        """The replica is no longer ours: its sessions move, and it is told so."""
        with self._answered:
            member.draining = True
            self._move_away(member)
            self.members.pop(member.replica_id, None)

    def member_up(self, member: Member, info: DraftInfo) -> None:
        """Connected and fit: it takes the sessions that are at no replica."""
        with self._answered:
            member.info, member.fault = info, None
            member.suspect = member.draining = False
            member.credit = BURST
            member.step_messages.clear()
            member.bulk_messages.clear()
            for seq_id in self.sessions.of_member(None):
                self._assign(seq_id)

    def member_down(self, member: Member, fault: str | None = None) -> None:
        """Not connected: k = 0 for its sessions at once, and whoever waits for them goes on."""
        with self._answered:
            was_up = member.info is not None
            member.info, member.fault = None, fault
            member.step_messages.clear()
            member.bulk_messages.clear()
            self.counters.num_disconnects += was_up
            self._move_away(member)

    def member_suspect(self, member: Member, suspect: bool) -> None:
        """Silent for too long, or heard of again: its sessions pause, and keep their place."""
        with self._answered:
            member.suspect = suspect
            self._forget_answered()

    def heartbeat(self, member: Member, beat: Heartbeat, round_trip_s: float | None = None) -> None:
        """The replica's load; `round_trip_s` where it echoes one of our heartbeats."""
        with self._answered:
            member.load = beat
            if round_trip_s is not None:
                member.round_trip_s = smooth(member.round_trip_s or 0.0, round_trip_s)
                if member.trusted:
                    self.counters.observe_round_trip(round_trip_s * 1000)
                    self._round_times.heard(round_trip_s)
            if beat.draining and not member.draining:
                member.draining = True
                member.fault = "draft_draining"
                self._move_away(member)

    def receive(self, member: Member, message: Proposal | Resync) -> None:
        with self._answered:
            if isinstance(message, Proposal):
                self._round_times.answered(
                    message.session_id,
                    message.round,
                    len(message.token_ids),
                    message.draft_ms / 1000,
                )
            reply = self.sessions.receive(member.replica_id, message)
            if isinstance(reply, Open):
                member.bulk_messages.append(reply)
            elif reply is not None:
                member.step_messages.append(reply)
            if self._awaited:
                self._forget_answered((message.session_id,))

    def flush_old_commits(self) -> None:
        """Send what was buffered for sequences that have not asked for a while."""
        now_s = time.monotonic()
        with self._answered:
            if now_s < self._next_flush_s:
                return
            self._next_flush_s = now_s + SECONDS_BUFFERED
            for member in self.members.values():
                for seq_id in self.sessions.of_member(member.replica_id):
                    self._flush(seq_id)

    def take_step(self, member: Member) -> list[TargetMessage]:
        """All that waits to go out on Speculate."""
        with self._answered:
            messages, member.step_messages = member.step_messages, []
            member.told(len(messages))
        return messages

    def take_bulk(self, member: Member) -> Open | Close | None:
        """The next message for Sync; an Open that is out of date by now is left out."""
        with self._answered:
            while member.bulk_messages:
                message = member.bulk_messages.popleft()
                session = self.sessions.get(message.session_id)
                is_current = session is not None and session.epoch == message.epoch
                if isinstance(message, Close) or is_current:
                    member.told(1)
                    return message
        return None

    # Under the lock

    def _member_of(self, seq_id: int) -> Member | None:
        session = self.sessions.get(seq_id)
        if session is None or session.member is None:
            return None
        return self.members.get(session.member)

    def _is_served(self, seq_id: int) -> bool:
        member = self._member_of(seq_id)
        return member is not None and member.info is not None and not member.suspect

    def _is_ours(self, seq_id: int) -> bool:
        """Whether its draft is our own, whose times count."""
        member = self._member_of(seq_id)
        return member is not None and member.trusted

    def _assign(self, seq_id: int) -> None:
        """Open the session at the replica with the fewest, if there is one."""
        candidates = [member for member in self.members.values() if member.takes_sessions]
        if not candidates:
            return
        member = min(candidates, key=self._reluctance)
        assert member.info is not None
        message = self.sessions.connect(seq_id, member.replica_id, member.info, member.trusted)
        if message is not None:
            member.bulk_messages.append(message)

    def _reluctance(self, member: Member) -> tuple[bool, int]:
        """Our own drafts first, then the one with the fewest sessions."""
        return not member.trusted, self.sessions.num_at(member.replica_id)

    def _move_away(self, member: Member) -> None:
        if self.members.get(member.replica_id) is not member:
            return  # a link that ends late, after its replica was replaced
        for seq_id in self.sessions.of_member(member.replica_id):
            message = self.sessions.disconnect(seq_id)
            if message is not None and member.info is not None:
                member.bulk_messages.append(message)
            self._assign(seq_id)
        self._forget_answered()

    def _post(self, seq_id: int, message: Commit | Close | None) -> None:
        member = self._member_of(seq_id)
        if member is not None and message is not None:
            member.step_messages.append(message)

    def _flush(self, seq_id: int) -> bool:
        message = self.sessions.flush(seq_id) if self._is_served(seq_id) else None
        self._post(seq_id, message)
        return message is not None

    def _forget_answered(self, seq_ids: Iterable[int] | None = None) -> None:
        """Wait no longer for sequences that are answered, served from hand, or lost."""
        for seq_id in list(self._awaited) if seq_ids is None else seq_ids:
            k = self._awaited.get(seq_id)
            if k is not None and not self._is_worth_waiting(seq_id, k):
                del self._awaited[seq_id]
        if not self._awaited:
            self._answered.notify_all()

    def _is_worth_waiting(self, seq_id: int, k: int) -> bool:
        if not self._is_served(seq_id) or not self.sessions.is_waiting(seq_id):
            return False
        return self._num_in_hand(seq_id, k) < k

    def _num_in_hand(self, seq_id: int, k: int) -> int:
        drafts = self.sessions.drafts(seq_id, k)
        return len(drafts.token_ids) if drafts is not None else 0
