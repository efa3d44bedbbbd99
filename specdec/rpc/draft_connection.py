"""One target's connection to a draft server: its two streams and what waits to be sent.

Lives on the server's event loop. The draft engine delivers from its own thread; everything that
is ready by the time the stream is free leaves in one message, and a newer proposal of a session
replaces an older one that nobody has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from specdec.rpc import convert
from specdec.rpc.pace import Pace
from specdec.speculation.messages import DraftMessage, Heartbeat, Hello, Open, Proposal, Resync
from specdec.v1 import draft_pb2

# Answers that wait for a target that does not read; beyond it the oldest are dropped, and the
# target hears no more of those than of a draft that is late.
MAX_WAITING = 4096


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
        self.has_sync = False
        self.pace = Pace()

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
            if len(self._outbox) > MAX_WAITING:
                del self._outbox[next(iter(self._outbox))]
        self._something.set()

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._something.set()

    async def next_response(self) -> draft_pb2.SpeculateResponse:
        """Wait until there is something to send, and take what fits a message: as a rule all."""
        await self._something.wait()
        self._something.clear()
        messages: list[DraftMessage] = []
        if self._heartbeat is not None:
            messages.append(self._heartbeat)
            self._heartbeat = None
        num_bytes = 0
        while self._outbox and len(messages) < convert.MAX_RECORDS:
            key, message = next(iter(self._outbox.items()))
            num_bytes += convert.proposed_bytes(message)
            if num_bytes > convert.MAX_PROPOSED_BYTES and len(messages) > 1:
                break
            messages.append(message)
            del self._outbox[key]
        if self._outbox:
            self._something.set()
        return convert.ready_to_wire(messages)


class OpenAssembly:
    """Puts the chunks of one Sync stream together; an Open that is interrupted is dropped.

    One of more than `max_tokens` tokens, which has no place in the draft's context, is not kept:
    `decline` takes the answer.
    """

    def __init__(
        self,
        submit: Callable[[Open], None],
        max_tokens: int,
        decline: Callable[[list[DraftMessage]], None],
    ) -> None:
        self._submit = submit
        self._max_tokens = max_tokens
        self._decline = decline
        self._head: draft_pb2.Open | None = None
        self._token_ids: list[int] = []

    def start(self, head: draft_pb2.Open) -> None:
        self._head, self._token_ids = None, []
        if head.num_prompt_tokens + head.num_output_tokens > self._max_tokens:
            self._decline([Proposal(head.session_id, head.epoch, 0, 0, [], reason="context_full")])
            return
        self._head, self._token_ids = head, list(head.token_ids)
        head.ClearField("token_ids")
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
