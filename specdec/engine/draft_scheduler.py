"""What a draft engine computes in its next pass: drafting first, catch-up beside it, fair shares.

Pure policy over work items and numbers: no sessions' inner state, no memory, no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from specdec.engine.draft_session import Session

CATCH_UP_SHARE = 4  # while catch-up waits, drafting leaves it one token in so many
FAST_WEIGHT, SLOW_WEIGHT = 0.5, 0.1  # of a newer, lower or higher, measurement


@dataclass(slots=True)
class Work:
    """`num_tokens` query tokens of one session; the scheduler may cut the number."""

    session: Session
    num_tokens: int
    is_catch_up: bool


class FairShare:
    """Start-time fair queueing (Goyal et al. 1996) over targets, in query tokens.

    The target that was served least goes next; one that comes back after a pause starts level
    with the others, so that it has neither credit nor debt for the time it was away.
    """

    def __init__(self) -> None:
        self._finish: dict[str, float] = {}
        self._virtual_time = 0.0

    def admit(self, works: Iterable[Work], num_tokens: int, num_seats: int) -> list[Work]:
        """Take work up to both limits; within a target in the given order."""
        queues: dict[str, deque[Work]] = {}
        for work in works:
            queues.setdefault(work.session.target, deque()).append(work)
        admitted = []
        while queues and num_tokens > 0 and num_seats > 0:
            target = min(queues, key=self._start)
            work = queues[target].popleft()
            if not queues[target]:
                del queues[target]
            work.num_tokens = min(work.num_tokens, num_tokens)
            self._serve(target, work.num_tokens)
            num_tokens -= work.num_tokens
            num_seats -= 1
            admitted.append(work)
        return admitted

    def forget(self, target: str) -> None:
        self._finish.pop(target, None)

    def _start(self, target: str) -> float:
        return max(self._virtual_time, self._finish.get(target, 0.0))

    def _serve(self, target: str, num_tokens: int) -> None:
        start = self._start(target)
        self._virtual_time = start
        self._finish[target] = start + num_tokens


class PassCost:
    """Measured time of a pass: `draft_step_s` for one that only drafts, and `token_s` for each
    catch-up token beside it. Both are None until seen."""

    def __init__(self) -> None:
        self.draft_step_s: float | None = None
        self.token_s: float | None = None

    def observe(self, num_catch_up_tokens: int, elapsed_s: float) -> None:
        if num_catch_up_tokens == 0:
            self.draft_step_s = _blend(self.draft_step_s, elapsed_s)
        else:
            extra_s = max(0.0, elapsed_s - (self.draft_step_s or 0.0))
            self.token_s = _blend(self.token_s, extra_s / num_catch_up_tokens)

    def catch_up_tokens(self, slack_s: float, least: int) -> int:
        """How many catch-up tokens fit a pass that may take `slack_s` longer; never below
        `least`, so that catch-up always moves."""
        if self.token_s is None:
            return least
        return max(least, int(slack_s / max(self.token_s, 1e-9)))


class DraftScheduler:
    """Chooses the work of one pass under a token budget and a limit of sequences."""

    def __init__(self, max_num_tokens: int, max_num_sequences: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._max_num_sequences = max_num_sequences
        self._drafting = FairShare()
        self._catching_up = FairShare()

    def select(self, drafts: list[Work], catch_ups: list[Work], max_catch_up: int) -> list[Work]:
        """Drafting work, then catch-up with what is left, at most `max_catch_up` tokens. Waiting
        catch-up always gets a seat and a share of the tokens."""
        tokens, seats = self._max_num_tokens, self._max_num_sequences
        if not drafts:
            return self._catching_up.admit(catch_ups, min(tokens, max_catch_up), seats)
        if not catch_ups:
            return self._drafting.admit(drafts, tokens, seats)
        kept_tokens = min(max(1, tokens // CATCH_UP_SHARE), tokens - 1)
        admitted = self._drafting.admit(drafts, tokens - kept_tokens, max(1, seats - 1))
        tokens -= sum(work.num_tokens for work in admitted)
        seats -= len(admitted)
        return admitted + self._catching_up.admit(catch_ups, min(tokens, max_catch_up), seats)

    def forget(self, target: str) -> None:
        """Drop a target that is gone."""
        self._drafting.forget(target)
        self._catching_up.forget(target)


def _blend(old: float | None, new: float) -> float:
    """A running mean that forgets slow outliers (a cold start, a pause of the process) fast."""
    if old is None:
        return new
    weight = FAST_WEIGHT if new < old else SLOW_WEIGHT
    return old + weight * (new - old)
