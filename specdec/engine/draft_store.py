"""All sessions of all targets in one draft engine: messages in, answers out.

Keeps sessions in step with what targets say and decides who is declined, and why. It computes
nothing and chooses no work. Numbers from outside are checked here, before a model indexes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specdec.config import DraftLimits
from specdec.engine.draft_books import Books, params_size
from specdec.engine.draft_memory import DraftMemory
from specdec.engine.draft_session import OutOfStep, Session
from specdec.errors import InvalidRequestError
from specdec.speculation.messages import (
    Close,
    Commit,
    DraftMessage,
    Open,
    Proposal,
    Resync,
    TargetMessage,
)

Outbox = list[tuple[str, DraftMessage]]
ASKING_S = 1.0
NOT_FINITE = "not_finite"


@dataclass(frozen=True, slots=True)
class _Declined:
    """A session that is never drafted for again."""

    epoch: int
    reason: str


class SessionStore:
    """Sessions by (target, session id), and the messages that wait to be sent.

    `vocab_size` is the draft model's; `eos_token_ids` are its own; `max_k` caps every ask.
    """

    def __init__(
        self,
        memory: DraftMemory,
        vocab_size: int,
        max_model_len: int,
        max_k: int,
        eos_token_ids: frozenset[int],
        limits: DraftLimits,
        clock: Callable[[], float],
    ) -> None:
        self.memory = memory
        self.is_draining = False
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_k = max_k
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._target_vocab_sizes: dict[str, int] = {}
        self._sessions: dict[tuple[str, int], Session] = {}
        self._declined: dict[tuple[str, int], _Declined] = {}
        self._books = Books(limits)
        self._outbox: Outbox = []
        self._asked_s: dict[str, float] = {}

    # -- targets and sessions ------------------------------------------------------------------

    def add_target(self, target: str, vocab_size: int) -> None:
        """Take up a target; draft tokens for it stay below its `vocab_size`, which is positive or
        ValueError is raised."""
        if vocab_size <= 0:
            raise ValueError(f"target {target}: a vocabulary of {vocab_size} tokens")
        self._target_vocab_sizes[target] = vocab_size

    def drop_target(self, target: str) -> None:
        """Free everything of a target; nothing more is sent to it."""
        for session in [s for s in self._sessions.values() if s.target == target]:
            self._remove(session)
        for key in [key for key in self._declined if key[0] == target]:
            self._forget_declined(key)
        self._target_vocab_sizes.pop(target, None)
        self._asked_s.pop(target, None)
        self._outbox = [sent for sent in self._outbox if sent[0] != target]

    @property
    def num_asking_targets(self) -> int:
        """Targets that asked for draft tokens within ASKING_S; safe to read from any thread."""
        since_s = self._clock() - ASKING_S
        return sum(asked_s >= since_s for asked_s in list(self._asked_s.values()))

    def target_vocab_size(self, target: str) -> int:
        return self._target_vocab_sizes[target]

    def get(self, target: str, session_id: int) -> Session | None:
        return self._sessions.get((target, session_id))

    def all(self) -> list[Session]:
        """All sessions, oldest first."""
        return list(self._sessions.values())

    def asked(self) -> list[Session]:
        """Sessions with an unanswered ask, earliest deadline first."""
        asked = [(s.ask.deadline_s, s) for s in self._sessions.values() if s.ask is not None]
        return [session for _, session in sorted(asked, key=lambda pair: pair[0])]

    # -- messages in ---------------------------------------------------------------------------

    def submit(self, target: str, messages: Iterable[TargetMessage]) -> None:
        """Take messages in order; those of an unknown target are dropped. Heartbeats are the
        transport's to answer."""
        if target not in self._target_vocab_sizes:
            return
        for message in messages:
            if isinstance(message, Open):
                self._open(target, message)
            elif isinstance(message, Commit):
                self._commit(target, message)
            elif isinstance(message, Close):
                self._close(target, message)

    def _open(self, target: str, opened: Open) -> None:
        key = (target, opened.session_id)
        old, declined = self._sessions.get(key), self._declined.get(key)
        known_epoch = old.opened.epoch if old else declined.epoch if declined else 0
        if opened.epoch <= known_epoch:
            return
        if old is not None:
            self._remove(old)
        if declined is not None:
            self._forget_declined(key)
        size = len(opened.prompt_token_ids) + len(opened.output_token_ids)
        size += params_size(opened.params)
        if not self._books.takes(target, size):
            self.send(target, _notice(opened, "over_limit"))
            return
        session = Session.of(
            target, opened, self._eos_token_ids, self._max_model_len, self._clock()
        )
        self._sessions[session.key] = session
        self._books.add(session.key, size)
        fault = self._open_fault(session)
        if fault:
            self.answer(session, fault)
            self._decline(session, fault)

    def _open_fault(self, session: Session) -> str:
        opened = session.opened
        if self.is_draining:
            return "draining"
        if session.room <= 0:
            return "context_full"
        if not opened.prompt_token_ids or not self._is_known(session.token_ids):
            return "unsupported"
        try:
            opened.params.validate(self._vocab_size)
        except InvalidRequestError:
            return "unsupported"
        return ""

    def _commit(self, target: str, commit: Commit) -> None:
        if commit.k > 0:
            self._asked_s[target] = self._clock()
        key = (target, commit.session_id)
        session, declined = self._sessions.get(key), self._declined.get(key)
        known_epoch = session.opened.epoch if session else declined.epoch if declined else 0
        if not known_epoch or commit.epoch > known_epoch:
            self._resync(target, commit, "unknown session or epoch")
        elif commit.epoch == known_epoch and session is not None:
            self._continue(session, commit)
        elif commit.epoch == known_epoch and declined is not None and commit.k > 0:
            self.send(target, _refusal(commit, declined.reason))

    def _continue(self, session: Session, commit: Commit) -> None:
        num_tokens = session.num_tokens
        try:
            session.apply(commit, self._max_k, self._clock())
        except OutOfStep as fault:
            self._remove(session)
            self._resync(session.target, commit, fault.reason)
            return
        reason = self._commit_fault(session, commit, session.num_tokens - num_tokens)
        if reason:
            self._decline(session, reason)
            if commit.k > 0:
                self.send(session.target, _refusal(commit, reason))
            return
        self.memory.trim(session)
        if session.is_answerable:
            self.answer(session)

    def _commit_fault(self, session: Session, commit: Commit, num_new: int) -> str:
        if not self._books.grow(session.key, num_new):
            return "over_limit"
        if not self._is_known(commit.token_ids):
            return "unsupported"
        return "context_full" if session.room <= 0 else ""

    def _close(self, target: str, message: Close) -> None:
        key = (target, message.session_id)
        session, declined = self._sessions.get(key), self._declined.get(key)
        if session is not None and message.epoch >= session.opened.epoch:
            self._remove(session)
        if declined is not None and message.epoch >= declined.epoch:
            self._forget_declined(key)

    def _is_known(self, token_ids: list[int]) -> bool:
        """Whether this model has an embedding for all of them. A larger, padded target vocabulary
        may hold more; such a text cannot be followed."""
        return not token_ids or (min(token_ids) >= 0 and max(token_ids) < self._vocab_size)

    # -- answers out ---------------------------------------------------------------------------

    def answer(self, session: Session, reason: str = "") -> None:
        """Settle the session's ask, or send a notice where there is none."""
        if session.num_lawful is not None:
            self._answer_last(session)
            return
        proposal = session.answer(self._clock(), reason)
        if proposal.reason != "overloaded":  # that one says nothing about the context
            session.is_ready = not proposal.reason
        self.send(session.target, proposal)

    def _answer_last(self, session: Session) -> None:
        """The model makes no law of this text: send what was drafted before, then never draft for
        it again."""
        self.send(session.target, session.answer(self._clock(), NOT_FINITE))
        session.drop_tail()
        self._decline(session, NOT_FINITE)

    def refuse(self, session: Session, reason: str) -> None:
        """Settle the session's ask without tokens and never draft for it again."""
        session.drop_tail()
        self.answer(session, reason)
        self._decline(session, reason)

    def put_aside(self, session: Session) -> None:
        """Free a session's memory; it is rebuilt when asked again."""
        self.memory.release(session)
        session.is_wanted = session.is_ready = False

    def send(self, target: str, message: DraftMessage) -> None:
        self._outbox.append((target, message))

    @property
    def has_mail(self) -> bool:
        return bool(self._outbox)

    def take_outbox(self) -> Outbox:
        """What waits to be sent, in order."""
        sent, self._outbox = self._outbox, []
        return sent

    def _decline(self, session: Session, reason: str) -> None:
        """Never draft for this session again; of it only the name and the reason are kept."""
        session.ask = None
        self.put_aside(session)
        del self._sessions[session.key]
        self._books.shrink(session.key)
        self._declined[session.key] = _Declined(session.opened.epoch, reason)

    def _remove(self, session: Session) -> None:
        self.memory.release(session)
        self._books.remove(session.key)
        del self._sessions[session.key]

    def _forget_declined(self, key: tuple[str, int]) -> None:
        self._books.remove(key)
        del self._declined[key]

    def check_books(self) -> None:
        """AssertionError unless what is counted is what there is."""
        sizes = {
            key: session.num_tokens + params_size(session.opened.params)
            for key, session in self._sessions.items()
        }
        self._books.check(sizes | dict.fromkeys(self._declined, 0))

    def _resync(self, target: str, commit: Commit, reason: str) -> None:
        self.send(target, Resync(commit.session_id, commit.epoch, reason))


def _notice(opened: Open, reason: str) -> Proposal:
    base_len = len(opened.output_token_ids)
    return Proposal(opened.session_id, opened.epoch, base_len, 0, [], reason=reason)


def _refusal(commit: Commit, reason: str) -> Proposal:
    return Proposal(
        session_id=commit.session_id,
        epoch=commit.epoch,
        base_len=commit.base_len,
        round=commit.round,
        token_ids=[],
        reason=reason,
    )
