"""What every connection of ours shares: channel options, limits, and an event loop of its own.

gRPC objects belong to the loop that made them, and the engine's thread must not run one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_STREAMS = 16  # of one connection; a target needs two and now and then one more

_COMMON_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
# Reconnecting is our business: a shared subchannel would add gRPC's own back-off to ours.
CHANNEL_OPTIONS = [*_COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
SERVER_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.so_reuseport", 0),  # two servers on one port would split the sessions silently
]


def quiet_poller_noise(loop: asyncio.AbstractEventLoop) -> None:
    """Drop the one message that several grpc.aio loops in a process provoke in each other.

    They share a completion queue and wake up for each other's events (grpc#25364); the read that
    then finds nothing is harmless.
    """
    previous = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_noise = isinstance(context.get("exception"), BlockingIOError)
        if is_noise and "PollerCompletionQueue" in context.get("message", ""):
            return
        if previous is not None:
            previous(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


async def until_one_ends(*awaitables: Awaitable[Any]) -> None:
    """Run all until the first one ends, cancel the others, and raise what ended it, if anything."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def next_within(requests: AsyncIterator[T], timeout_s: float) -> T | None:
    """The next message; None at the end of the stream, and after so much silence."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(timeout_s):
            return await anext(requests)
    return None


class LoopThread:
    """An asyncio event loop on a daemon thread, for callers that live on other threads."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        quiet_poller_noise(self.loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run to its end on the loop; raises TimeoutError past the deadline."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Cancel what still runs on the loop, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(timeout_s / 2), self.loop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("thread %s did not end within %.1f s", self._thread.name, timeout_s)
        else:
            self.loop.close()

    async def _end(self, timeout_s: float) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        self.loop.stop()
