"""What one target sent to a draft and the draft has not looked at yet.

The draft's thread takes a bounded amount of it before each pass, from every target, so that
nobody's messages hold up the others' proposals. Not locked: its owner is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from specdec.speculation.messages import Commit, Open, TargetMessage

# Looking at so many tokens takes about as long as at a record of none.
TOKENS_PER_RECORD = 64
# In records: a few milliseconds of all targets' messages before a pass, and no less of one than a
# small batch; of one, as much waiting as a few turns take.
MAX_PER_TURN = 1024
MIN_PER_TURN = 64
MAX_WAITING = 2048


class Inbox:
    """In order; never empties by itself."""

    def __init__(self) -> None:
        self._messages: deque[tuple[TargetMessage, int]] = deque()
        self._num_waiting = 0
        self._caught_up: Future[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def behind(self) -> Future[None] | None:
        """Where the sender should be read no further: done when it may. What is put in all the same
        is kept."""
        if self._num_waiting <= MAX_WAITING:
            return None
        if self._caught_up is None or self._caught_up.done():
            self._caught_up = Future()
        return self._caught_up

    def let_go(self) -> None:
        """Whoever waits reads on, or hears that there is nothing to read on for."""
        caught_up, self._caught_up = self._caught_up, None
        if caught_up is not None and caught_up.set_running_or_notify_cancel():
            caught_up.set_result(None)

    def put(self, messages: Iterable[TargetMessage]) -> None:
        for message in messages:
            size = _size(message)
            self._messages.append((message, size))
            self._num_waiting += size

    def take(self, num_senders: int = 1) -> list[TargetMessage]:
        """The oldest ones, as many as a turn may bring of one of so many targets that have sent
        something; at least one, however large."""
        taken: list[TargetMessage] = []
        room = max(MAX_PER_TURN // num_senders, MIN_PER_TURN)
        while self._messages and (not taken or self._messages[0][1] <= room):
            message, size = self._messages.popleft()
            taken.append(message)
            room -= size
            self._num_waiting -= size
        if self._num_waiting <= MAX_WAITING:
            self.let_go()
        return taken


def _size(message: TargetMessage) -> int:
    """Of a message, in records."""
    if isinstance(message, Open):
        num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
    else:
        num_tokens = len(message.token_ids) if isinstance(message, Commit) else 0
    return 1 + num_tokens // TOKENS_PER_RECORD
