"""How long the rounds with drafts take: the draft's part, and what the network adds.

A round is one ask for many sessions, and over when the last of them is answered. Pure state: it is
told what was asked and answered, and keeps the newest times until somebody takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Asks that are answered later than this many asks afterwards are of no interest any more.
MAX_OPEN_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class RoundTime:
    """depth: the most draft tokens asked for one session; num_tokens: for all of them. draft_s: of
    the session that took longest, as the draft tells, but never more than the round; network_s: the
    rest of the round."""

    depth: int
    num_tokens: int
    draft_s: float
    network_s: float


@dataclass(slots=True, eq=False)
class _Open:
    asked_s: float
    depth: int
    num_tokens: int
    num_awaited: int
    draft_s: float = 0.0
    num_drafted: int = 0


class RoundTimes:
    """`clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: list[_Open] = []
        self._by_ask: dict[tuple[int, int], _Open] = {}
        self._finished: RoundTime | None = None
        self._round_trip_s: float | None = None

    def asked(self, asks: Iterable[tuple[int, int, int]]) -> None:
        """(session, round, k) of all that were asked together."""
        asks = list(asks)
        if not asks:
            return
        ks = [k for _, _, k in asks]
        started = _Open(self._clock(), max(ks), sum(ks), len(asks))
        self._open.append(started)
        for session_id, number, _ in asks:
            self._by_ask[session_id, number] = started
        if len(self._open) > MAX_OPEN_ROUNDS:
            self._drop(self._open[0])

    def answered(self, session_id: int, number: int, num_tokens: int, draft_s: float) -> None:
        """A session's proposal came; without tokens it shows no drafting time."""
        started = self._by_ask.pop((session_id, number), None)
        if started is None:
            return
        started.num_awaited -= 1
        if num_tokens:
            started.num_drafted += 1
            started.draft_s = max(started.draft_s, draft_s)
        if started.num_awaited == 0:
            self._finish(started)

    def heard(self, round_trip_s: float) -> None:
        """A heartbeat's echo came back."""
        self._round_trip_s = round_trip_s

    def take(self) -> tuple[RoundTime | None, float | None]:
        """(the newest finished round, the newest heartbeat's round trip), each told once."""
        taken = self._finished, self._round_trip_s
        self._finished = self._round_trip_s = None
        return taken

    def _finish(self, started: _Open) -> None:
        self._open.remove(started)
        if started.num_drafted:
            elapsed_s = self._clock() - started.asked_s
            # The draft's own word, and nobody need believe that it took longer than the whole.
            draft_s = min(max(started.draft_s, 0.0), elapsed_s)
            self._finished = RoundTime(
                started.depth, started.num_tokens, draft_s, elapsed_s - draft_s
            )

    def _drop(self, started: _Open) -> None:
        self._open.remove(started)
        self._by_ask = {ask: of for ask, of in self._by_ask.items() if of is not started}
