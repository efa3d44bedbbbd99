"""The target's side of readers that stop: which streams may send, and how much each has sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass, field

from specdec.sequence import SequenceOutput


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class _Stream:
    may_send: asyncio.Event = field(default_factory=_open)
    num_sent: int = 0


class HeldStreams:
    """One per target replica; all of it on one event loop.

    A held stream takes nothing more of the engine, whose bounded queue of outputs then fills, and
    the engine pauses the sequence.
    """

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    async def passed(
        self, stream_id: str, outputs: AsyncIterator[SequenceOutput]
    ) -> AsyncGenerator[SequenceOutput, None]:
        """The same outputs, none of them while the stream is held."""
        stream = self._streams[stream_id] = _Stream()
        try:
            async for output in outputs:
                await stream.may_send.wait()
                stream.num_sent += 1
                yield output
        finally:
            del self._streams[stream_id]

    def hold(self, stream_ids: Iterable[str]) -> int:
        """Returns how many outputs those that run here have sent."""
        num_sent = 0
        for stream in self._known(stream_ids):
            stream.may_send.clear()
            num_sent += stream.num_sent
        return num_sent

    def release(self, stream_ids: Iterable[str]) -> None:
        for stream in self._known(stream_ids):
            stream.may_send.set()

    def _known(self, stream_ids: Iterable[str]) -> list[_Stream]:
        return [self._streams[each] for each in stream_ids if each in self._streams]
