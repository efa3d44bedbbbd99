"""Readers that stop: their requests are held, go on when they read again, or end.

A response that its client does not read fills the buffers on the way and then blocks whoever
yields the next output. The watch sees for how long. It costs a stream nothing else: only once a
reader is behind does the target hear of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specdec.errors import DeadlineError

logger = logging.getLogger(__name__)

PERIOD_S = 0.25
BEHIND_AFTER_S = 0.5


class Cancellable(Protocol):
    """A call to the target on its way."""

    def cancel(self) -> None:
        """End it."""


class Flow(Protocol):
    """How the target is told."""

    def hold(self, stream_ids: Sequence[str]) -> Awaitable[int]:
        """Let these streams stop; returns how many outputs they have sent."""

    def release(self, stream_ids: Sequence[str]) -> Awaitable[None]:
        """Let them go on."""


@dataclass(slots=True, eq=False)
class Reading:
    """One response as its reader takes it. `calls`: what produces it. `num_taken` outputs were
    passed on, the last of them at `given_s` if it is not taken yet. While `is_held`, the target
    goes on once `num_sent` are taken (None: it has not answered yet)."""

    stream_ids: Sequence[str]
    timeout_s: float
    calls: list[Cancellable] = field(default_factory=list)
    num_taken: int = 0
    given_s: float | None = None
    task: asyncio.Task[object] | None = None
    is_held: bool = False
    num_sent: int | None = None
    was_given_up: bool = False

    def give(self) -> None:
        """The next output is passed on."""
        self.num_taken += 1
        self.task = asyncio.current_task()
        self.given_s = time.monotonic()

    def take(self) -> None:
        """It was taken. Raises DeadlineError where that came too late."""
        self.given_s = None
        if self.was_given_up:
            raise DeadlineError(f"the response was not read for {self.timeout_s:g} seconds")

    def waited_s(self, now_s: float) -> float:
        """For how long the reader has taken nothing of what is there."""
        return 0.0 if self.given_s is None else now_s - self.given_s

    @property
    def has_caught_up(self) -> bool:
        return self.num_sent is not None and self.num_taken >= self.num_sent

    def give_up(self) -> None:
        """End the request: its calls first, since whoever passes it on is stuck."""
        self.was_given_up = True
        for call in self.calls:
            call.cancel()
        if self.task is not None:
            self.task.cancel()


class ReaderWatch:
    """One per gateway replica. Its readers may be behind for `timeout_s` without reading at all."""

    def __init__(self, flow: Flow, timeout_s: float) -> None:
        self._flow = flow
        self._timeout_s = timeout_s
        self._readings: set[Reading] = set()
        self._told: set[asyncio.Task[None]] = set()
        self._rounds: asyncio.Task[None] | None = None

    def begin(self, stream_ids: Sequence[str]) -> Reading:
        """Watch a response until `end`."""
        reading = Reading(stream_ids, self._timeout_s)
        self._readings.add(reading)
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._go_round())
        return reading

    def end(self, reading: Reading) -> None:
        self._readings.discard(reading)

    def taken(self, reading: Reading) -> None:
        """The reader took what was given last. Raises DeadlineError where it took too long."""
        reading.take()
        if reading.is_held and reading.has_caught_up:
            self._tell(self._let_go(reading))

    async def _go_round(self) -> None:
        while self._readings:
            await asyncio.sleep(PERIOD_S)
            now_s = time.monotonic()
            for reading in tuple(self._readings):
                self._look_at(reading, now_s)

    def _look_at(self, reading: Reading, now_s: float) -> None:
        waited_s = reading.waited_s(now_s)
        if waited_s > self._timeout_s and not reading.was_given_up:
            logger.info("a response was not read for %.0f s: its request is ended", waited_s)
            reading.give_up()
        elif waited_s > BEHIND_AFTER_S and not reading.is_held:
            reading.is_held = True
            self._tell(self._hold(reading))

    async def _hold(self, reading: Reading) -> None:
        reading.num_sent = await self._flow.hold(reading.stream_ids)
        if reading.given_s is None and reading.has_caught_up:  # meanwhile
            await self._let_go(reading)

    async def _let_go(self, reading: Reading) -> None:
        reading.is_held, reading.num_sent = False, None
        await self._flow.release(reading.stream_ids)

    def _tell(self, words: Awaitable[None]) -> None:
        task = asyncio.ensure_future(words)
        self._told.add(task)
        task.add_done_callback(self._told.discard)
