"""Traced requests at a draft: a span for every so many rounds, from the ask to the proposal.

A `DraftObserver`. The context comes with `Open`; a stream of its own has none, since it carries all
requests of a target at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from deployments.tracing import TRACEPARENT, Tracing, context_of
from specdec.speculation.messages import (
    Close,
    Commit,
    DraftMessage,
    Open,
    Proposal,
    TargetMessage,
)

# Traced sessions of one target that are followed at a time.
MAX_FOLLOWED = 1024


@dataclass(slots=True)
class _Session:
    """A traced session, and the round that was asked for and is to be told."""

    context: Context
    asked: Commit | None = None
    asked_ns: int = 0


class DraftTraces:
    """One per draft replica."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._lock = threading.Lock()
        self._sessions: dict[str, dict[int, _Session]] = {}

    def received(self, target: str, messages: Sequence[TargetMessage]) -> None:
        """Opens begin to be followed, asks of the rounds that are told start the clock."""
        with self._lock:
            sessions = self._sessions.setdefault(target, {})
            for message in messages:
                match message:
                    case Open(traceparent="") | Close():
                        sessions.pop(message.session_id, None)
                    case Open() if len(sessions) < MAX_FOLLOWED:
                        context = context_of({TRACEPARENT: message.traceparent})
                        sessions[message.session_id] = _Session(context)
                    case Commit() if message.k > 0:
                        self._ask(sessions.get(message.session_id), message)

    def _ask(self, session: _Session | None, commit: Commit) -> None:
        if session is not None and commit.round % self._tracing.step_every == 0:
            session.asked, session.asked_ns = commit, time.time_ns()

    def sent(self, target: str, messages: Sequence[DraftMessage]) -> None:
        """Proposals end the rounds that were asked for."""
        with self._lock:
            sessions = self._sessions.get(target)
            if not sessions:
                return
            for message in messages:
                if isinstance(message, Proposal) and (session := sessions.get(message.session_id)):
                    self._tell(session, message)

    def _tell(self, session: _Session, proposal: Proposal) -> None:
        asked = session.asked
        if asked is None or proposal.round != asked.round:
            return
        session.asked = None
        span = self._tracing.tracer.start_span(
            "specdec.draft",
            context=session.context,
            kind=SpanKind.SERVER,
            start_time=session.asked_ns,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": "specdec.v1.DraftService",
                "rpc.method": "Speculate",
                "specdec.round": proposal.round,
                "specdec.k": asked.k,
                "specdec.draft_tokens": len(proposal.token_ids),
                "specdec.draft_ms": proposal.draft_ms,
                "specdec.decline_reason": proposal.reason,
            },
        )
        span.end()

    def dropped(self, target: str) -> None:
        with self._lock:
            self._sessions.pop(target, None)
