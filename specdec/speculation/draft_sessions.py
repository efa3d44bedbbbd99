"""The target's side of the propose/verify protocol, without any transport (design section 4).

Turns the engine's calls into messages for the draft, and the draft's messages into draft tokens
that may be verified. Everything a draft says is checked here; whatever is wrong is dropped or
truncated and counted by reason, never raised. Single-threaded: the owner holds a lock.

Invariant: what the draft has been told is a prefix of the committed text, and every token handed
out by `drafts` belongs to the current epoch and extends the committed text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from specdec.sequence import Sequence
from specdec.speculation import proposal_check
from specdec.speculation.draft_counters import DraftCounters
from specdec.speculation.draft_session import DraftSession
from specdec.speculation.messages import (
    DECLINE_REASONS,
    Close,
    Commit,
    DraftInfo,
    Open,
    Proposal,
    Resync,
)
from specdec.speculation.proposer import Committed, DraftTokens

UNAVAILABLE = "draft_unavailable"
CONTEXT_FULL = "draft_context_full"
OUT_OF_STEP = "draft_out_of_step"
PREFILLING = "draft_prefilling"

# How a decline is counted whose reason the protocol does not know.
UNKNOWN_REASON = "unknown"

NUM_PAUSED_COMMITS = 32
MAX_FRUITLESS_OPENS = 8

_FOR_GOOD = frozenset({"context_full", "over_limit", "unsupported", "not_finite"})
_PAUSING = frozenset({"kv_full", "draining"})


class DraftSessions:
    """All sessions of one target. A member is a draft replica, by its id; a session belongs to at
    most one member at a time and survives the loss of it."""

    def __init__(self, vocab_size: int, counters: DraftCounters | None = None) -> None:
        self.counters = counters if counters is not None else DraftCounters()
        self._vocab_size = vocab_size
        self._sessions: dict[int, DraftSession] = {}
        self._num_at_member: Counter[str] = Counter()

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, seq_id: int) -> DraftSession | None:
        """Read access for owners and tests; only this class changes a session."""
        return self._sessions.get(seq_id)

    def of_member(self, member: str | None) -> list[int]:
        """The sequences at a member; None: those at no member."""
        return [s.seq_id for s in self._sessions.values() if s.member == member]

    def num_at(self, member: str) -> int:
        """How many sequences are at a member."""
        return self._num_at_member[member]

    # The engine's calls

    def add(self, sequence: Sequence) -> None:
        """Take up a sequence; it speaks to no draft before `connect`."""
        self._sessions[sequence.seq_id] = DraftSession.of(sequence)

    def commit(self, result: Committed) -> None:
        """Append committed tokens; nothing is sent before `ask` or `flush`."""
        session = self._sessions.get(result.seq_id)
        if session is None:
            return
        rejected = result.num_accepted_tokens < result.num_draft_tokens
        if session.append(result.token_ids, rejected):
            self.counters.num_stale += session.held_late

    def ask(self, seq_id: int, k: int, deadline_ms: float) -> Commit | Close | None:
        """Flush the session's commits and ask for k draft tokens.

        None: this session cannot be asked now. Close: the text has outgrown the draft's context.
        """
        session = self._sessions.get(seq_id)
        if session is None or session.info is None or not self.available(seq_id):
            return None
        if session.room <= 0:
            return self._refuse(session, CONTEXT_FULL)
        session.paused = None
        k = min(k, session.room, session.info.max_num_speculative_tokens)
        self.counters.num_asks += k > 0
        return session.commit(k, deadline_ms)

    def flush(self, seq_id: int) -> Commit | Close | None:
        """Tell the draft what it has not been told, without asking for draft tokens."""
        session = self._sessions.get(seq_id)
        if session is None or not session.opened or not session.num_unsent_tokens:
            return None
        if session.refused is not None:  # the draft was told to forget it
            return None
        if session.room <= 0:
            return self._refuse(session, CONTEXT_FULL)
        return session.commit(0, 0.0)

    def remove(self, seq_id: int) -> Close | None:
        """Forget a sequence; Close is to be sent to the member it was at."""
        session = self._sessions.pop(seq_id, None)
        if session is None or session.member is None:
            return None
        self._num_at_member[session.member] -= 1
        return session.close()

    def drafts(self, seq_id: int, k: int) -> DraftTokens | None:
        """At most k checked draft tokens that follow the committed text, or None."""
        session = self._sessions.get(seq_id)
        return session.drafts(k) if session is not None else None

    def collect(self, ks: Mapping[int, int]) -> dict[int, DraftTokens]:
        """The draft tokens in hand for the sequences that a step asked for, counted as hits."""
        found = {seq_id: self.drafts(seq_id, k) for seq_id, k in ks.items() if k > 0}
        hits = {seq_id: drafts for seq_id, drafts in found.items() if drafts is not None}
        self.counters.num_hits += len(hits)
        self.counters.num_misses += len(found) - len(hits)
        return hits

    def is_waiting(self, seq_id: int) -> bool:
        """Whether the last `ask` is still unanswered."""
        session = self._sessions.get(seq_id)
        return session is not None and session.is_waiting

    def available(self, seq_id: int) -> bool:
        """Whether asking makes sense: the draft is ready and has not declined."""
        session = self._sessions.get(seq_id)
        if session is None or not session.ready or session.refused is not None:
            return False
        return session.paused is None or session.num_commits_paused >= NUM_PAUSED_COMMITS

    def disabled_reason(self, seq_id: int) -> str | None:
        """Why `available` is False, as a word for the user; None where it is True."""
        session = self._sessions.get(seq_id)
        if session is None:
            return UNAVAILABLE
        if session.refused is not None:
            return session.refused
        if session.member is None:
            return UNAVAILABLE
        if session.paused is not None:
            return f"draft_{session.paused}"
        return None if session.ready else PREFILLING

    # Connection and messages

    def connect(
        self, seq_id: int, member: str, info: DraftInfo, trusted: bool = True
    ) -> Open | None:
        """Give the session to a member, under a new epoch. None: its context is too short.

        `trusted`: the member is our own draft deployment, so its laws are believed.
        """
        session = self._sessions[seq_id]
        assert session.member is None, "disconnect it first"
        session.member, session.info, session.trusted = member, info, trusted
        self._num_at_member[member] += 1
        session.refused = None
        session.num_fruitless_opens = 0
        if session.room <= 0:
            self._refuse(session, CONTEXT_FULL)
            return None
        return session.open()

    def disconnect(self, seq_id: int, reason: str | None = None) -> Close | None:
        """Take the session from its member: k = 0 until it is connected again.

        Close is for a member that still listens; `reason` is what `disabled_reason` tells.
        """
        session = self._sessions.get(seq_id)
        if session is None or session.member is None:
            return None
        message = session.close()
        self._num_at_member[session.member] -= 1
        session.member = session.info = session.held = None
        session.opened = session.ready = False
        session.answered_round = session.round
        session.refused = reason
        return message

    def receive(self, member: str, message: Proposal | Resync) -> Open | Close | None:
        """Take a draft's message; the answer, if any, goes back to the same member."""
        session = self._sessions.get(message.session_id)
        if session is None or session.member != member:
            self.counters.faults["unknown_session"] += 1
            return None
        if message.epoch != session.epoch or session.refused is not None:
            self.counters.num_stale += 1
            return None
        if isinstance(message, Resync):
            return self._reopen(session)
        if message.round > session.round or message.base_len > session.sent_len:
            self.counters.faults["ahead_of_commits"] += 1
            return None
        session.opened = True
        if message.reason:
            return self._declined(session, message)
        session.ready = True
        if message.token_ids:
            self._proposed(session, message)
        session.answered_round = max(session.answered_round, message.round)
        return None

    def _proposed(self, session: DraftSession, proposal: Proposal) -> None:
        """Check a proposal with tokens and keep it, if it may still be of use."""
        asked_k = session.asked_k.get(proposal.round)
        if asked_k is None:
            self.counters.num_stale += 1
            return
        num_trusted, fault = proposal_check.trusted_length(
            proposal, asked_k, self._vocab_size, session.needs_laws
        )
        if fault is not None:
            self.counters.faults[fault] += 1
        if proposal.laws and not session.needs_laws:
            self.counters.faults[proposal_check.LAW_IGNORED] += 1
        if session.held is not None and proposal.round <= session.held.round:
            self.counters.num_duplicates += 1
            return
        late = proposal.base_len < len(session.output_token_ids)
        self.counters.num_late += late
        del proposal.token_ids[num_trusted:]
        if session.extends(proposal):
            session.hold(proposal, num_trusted)
            session.num_fruitless_opens = 0
            self.counters.num_late_used += late
        else:
            self.counters.num_stale += late

    def _declined(self, session: DraftSession, proposal: Proposal) -> Close | None:
        # Words from the wire become names of counters: no more of them than the protocol knows.
        known = proposal.reason in DECLINE_REASONS
        self.counters.declines[proposal.reason if known else UNKNOWN_REASON] += 1
        session.answered_round = max(session.answered_round, proposal.round)
        if proposal.reason in _FOR_GOOD:
            return self._refuse(session, f"draft_{proposal.reason}")
        if proposal.reason == "prefilling":
            session.ready = False
        elif proposal.reason in _PAUSING:
            session.ready = True
            session.paused = proposal.reason
            session.num_commits_paused = 0
        return None

    def _reopen(self, session: DraftSession) -> Open | Close:
        self.counters.num_resyncs += 1
        session.num_fruitless_opens += 1
        if session.num_fruitless_opens > MAX_FRUITLESS_OPENS:
            return self._refuse(session, OUT_OF_STEP)
        if session.room <= 0:
            return self._refuse(session, CONTEXT_FULL)
        return session.open()

    def _refuse(self, session: DraftSession, reason: str) -> Close:
        """No draft for this sequence any more, at this member."""
        session.refused = reason
        session.held = None
        session.ready = False
        session.answered_round = session.round
        return session.close()
