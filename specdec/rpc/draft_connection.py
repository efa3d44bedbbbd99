"""One target's connection to a draft server: its two streams and what waits to be sent.

Lives on the server's event loop. The draft engine delivers from its own thread; everything that
is ready by the time the stream is free leaves in one message, and a newer proposal of a session
replaces an older one that nobody has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from specdec.rpc import convert
from specdec.speculation.messages import DraftMessage, Heartbeat, Hello, Open, Proposal, Resync
from specdec.v1 import draft_pb2

MAX_OPEN_TOKENS = 8_000_000


class DraftConnection:
    """Keyed by `target`, a name that no other connection ever has."""

    def __init__(self, hello: Hello, loop: asyncio.AbstractEventLoop) -> None:
        self.hello = hello
        self.target = f"{hello.target_id}/{hello.incarnation:x}/{hello.connection}"
        self.closed = loop.create_future()
        self._loop = loop
        self._outbox: dict[tuple[type, int], Proposal | Resync] = {}
        self._heartbeat: Heartbeat | None = None
        self._something = asyncio.Event()

    def supersedes(self, other: Hello) -> bool:
        return (self.hello.incarnation, self.hello.connection) > (
            other.incarnation,
            other.connection,
        )

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def deliver(self, messages: list[DraftMessage]) -> None:
        """Called by the draft engine, from any thread; one wake-up for all of them."""
        try:
            self._loop.call_soon_threadsafe(self._put, messages)
        except RuntimeError:  # the loop is closed: the server is gone, and so is the target
            return

    def _put(self, messages: list[DraftMessage]) -> None:
        for message in messages:
            if isinstance(message, Heartbeat):
                self._heartbeat = message
                continue
            key = (type(message), message.session_id)
            self._outbox.pop(key, None)
            self._outbox[key] = message
        self._something.set()

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._something.set()

    async def next_response(self) -> draft_pb2.SpeculateResponse:
        """Wait until there is something to send, and take all of it."""
        await self._something.wait()
        self._something.clear()
        messages: list[DraftMessage] = list(self._outbox.values())
        self._outbox.clear()
        if self._heartbeat is not None:
            messages.append(self._heartbeat)
            self._heartbeat = None
        return convert.ready_to_wire(messages)


class OpenAssembly:
    """Puts the chunks of one Sync stream together; an Open that is interrupted is dropped."""

    def __init__(self, submit: Callable[[Open], None]) -> None:
        self._submit = submit
        self._head: draft_pb2.Open | None = None
        self._token_ids: list[int] = []

    def start(self, head: draft_pb2.Open) -> None:
        fits = head.num_prompt_tokens + head.num_output_tokens <= MAX_OPEN_TOKENS
        self._head = head if fits else None
        self._token_ids = list(head.token_ids)
        self._finish_if_complete()

    def more(self, chunk: draft_pb2.OpenTokens) -> None:
        head = self._head
        if head is None or (chunk.session_id, chunk.epoch) != (head.session_id, head.epoch):
            return
        self._token_ids.extend(chunk.token_ids)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._head is None:
            return
        num_tokens = self._head.num_prompt_tokens + self._head.num_output_tokens
        if len(self._token_ids) < num_tokens:
            return
        if len(self._token_ids) == num_tokens:
            message = convert.open_from_wire(self._head, self._token_ids)
            if message is not None:
                self._submit(message)
        self._head, self._token_ids = None, []
