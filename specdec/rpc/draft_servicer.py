"""DraftService over a DraftBackend, as the server of a draft replica offers it.

Carries messages and keeps track of who is connected; it never looks into a session. The end of a
target's Speculate stream, its silence, or a newer connection of the same target frees all of its
sessions, whatever the reason: on an aio server they all look alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from specdec.rpc import convert
from specdec.rpc.credentials import Doorkeeper, PeerTokens
from specdec.rpc.draft_connection import DraftConnection, OpenAssembly
from specdec.rpc.draft_observer import DraftObserver
from specdec.rpc.transport import next_within, until_one_ends
from specdec.speculation.draft_backend import DraftBackend
from specdec.speculation.handshake import hello_fault
from specdec.speculation.messages import (
    PROTOCOL_VERSION,
    DraftMessage,
    Heartbeat,
    Hello,
    TargetMessage,
)
from specdec.v1 import draft_pb2, draft_pb2_grpc

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 15.0
WRITE_TIMEOUT_S = 15.0
TOKENS_PER_VOCABULARY_CHUNK = 8192

SpeculateContext = grpc.aio.ServicerContext[draft_pb2.SpeculateRequest, draft_pb2.SpeculateResponse]
SyncContext = grpc.aio.ServicerContext[draft_pb2.SyncRequest, draft_pb2.SyncResponse]


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """One connection per target; all methods run on the server's loop. Every call shows a token of
    `tokens` that fits the target's id."""

    def __init__(
        self,
        backend: DraftBackend,
        tokens: PeerTokens,
        max_targets: int,
        observer: DraftObserver | None = None,
    ) -> None:
        self.backend = backend
        self._max_targets = max_targets
        self._door = Doorkeeper(tokens)
        self._observer = observer
        self.draining = False
        self.connections: dict[str, DraftConnection] = {}
        self._changed = asyncio.Condition()

    async def Info(
        self,
        request: draft_pb2.InfoRequest,
        context: grpc.aio.ServicerContext[draft_pb2.InfoRequest, draft_pb2.InfoResponse],
    ) -> draft_pb2.InfoResponse:
        await self._door.admit(context)
        return convert.info_to_wire(self.backend.info())

    async def Vocabulary(
        self,
        request: draft_pb2.VocabularyRequest,
        context: grpc.aio.ServicerContext[
            draft_pb2.VocabularyRequest, draft_pb2.VocabularyResponse
        ],
    ) -> AsyncIterator[draft_pb2.VocabularyResponse]:
        await self._door.admit(context)
        tokens = self.backend.vocabulary()
        for start in range(0, len(tokens), TOKENS_PER_VOCABULARY_CHUNK):
            yield draft_pb2.VocabularyResponse(
                first_token_id=start, tokens=tokens[start : start + TOKENS_PER_VOCABULARY_CHUNK]
            )

    async def Speculate(
        self, requests: AsyncIterator[draft_pb2.SpeculateRequest], context: SpeculateContext
    ) -> None:
        target_id = await self._door.admit(context)
        first = await next_within(requests, HELLO_TIMEOUT_S)
        wire = first.hello if first is not None else None
        hello = await self._checked_hello(target_id, wire, context)
        if target_id not in self.connections and len(self.connections) >= self._max_targets:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many targets")
        connection = DraftConnection(hello, asyncio.get_running_loop())
        if not await self._attach(connection):
            await context.abort(grpc.StatusCode.ABORTED, "a newer connection is in place")
        try:
            await context.write(draft_pb2.SpeculateResponse(welcome=self._welcome()))
            await until_one_ends(
                self._read_steps(connection, requests, context),
                _write_responses(connection, context),
                connection.closed,
            )
        except TimeoutError:
            logger.warning("target %s reads nothing", connection.target)
        finally:
            self._detach(connection)

    async def Sync(
        self, requests: AsyncIterator[draft_pb2.SyncRequest], context: SyncContext
    ) -> None:
        target_id = await self._door.admit(context)
        first = await next_within(requests, HELLO_TIMEOUT_S)
        wire = first.hello if first is not None else None
        hello = await self._checked_hello(target_id, wire, context)
        connection = await self._connection_of(hello)
        if connection is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Speculate comes first")
            return
        if connection.has_sync:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "one Sync stream per connection")
        connection.has_sync = True
        await context.write(draft_pb2.SyncResponse(welcome=self._welcome()))
        await until_one_ends(self._read_sync(connection, requests), connection.closed)

    # Handshake

    def _welcome(self) -> draft_pb2.Welcome:
        info = self.backend.info()
        return draft_pb2.Welcome(
            incarnation=info.incarnation, protocol_version=info.protocol_version
        )

    async def _checked_hello(
        self, target_id: str, wire: draft_pb2.Hello | None, context: SpeculateContext | SyncContext
    ) -> Hello:
        """Of the target that `target_id` was proved to be."""
        if wire is None or not wire.target_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is Hello")
            raise AssertionError("abort raises")
        hello = convert.hello_from_wire(wire)
        if hello.target_id != target_id:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the token is another target's")
        if hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol version {hello.protocol_version}; this draft speaks {PROTOCOL_VERSION}",
            )
        fault = hello_fault(hello)
        if fault is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        if self.draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        return hello

    async def _attach(self, connection: DraftConnection) -> bool:
        """False where a newer connection of the same target is already here."""
        hello = connection.hello
        old = self.connections.get(hello.target_id)
        if old is not None and not connection.supersedes(old.hello):
            return False
        if old is not None:
            self._drop(old)
        self.connections[hello.target_id] = connection
        self.backend.attach(connection.target, hello, self._deliver_to(connection))
        async with self._changed:
            self._changed.notify_all()
        logger.info("target %s connected", connection.target)
        return True

    def _detach(self, connection: DraftConnection) -> None:
        if self.connections.get(connection.hello.target_id) is connection:
            del self.connections[connection.hello.target_id]
            self._drop(connection)
            logger.info("target %s disconnected", connection.target)

    def _drop(self, connection: DraftConnection) -> None:
        connection.close()
        self.backend.drop_target(connection.target)
        if self._observer is not None:
            self._observer.dropped(connection.target)

    def _submit(self, target: str, messages: list[TargetMessage]) -> None:
        if self._observer is not None:
            self._observer.received(target, messages)
        self.backend.submit(target, messages)

    def _deliver_to(self, connection: DraftConnection) -> Callable[[list[DraftMessage]], None]:
        observer = self._observer
        if observer is None:
            return connection.deliver

        def deliver(messages: list[DraftMessage]) -> None:
            observer.sent(connection.target, messages)
            connection.deliver(messages)

        return deliver

    async def _connection_of(self, hello: Hello) -> DraftConnection | None:
        """The connection whose Speculate stream said the same Hello; waits for it a while."""

        def current() -> DraftConnection | None:
            connection = self.connections.get(hello.target_id)
            return connection if connection is not None and connection.hello == hello else None

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELLO_TIMEOUT_S), self._changed:
                await self._changed.wait_for(lambda: current() is not None)
        return current()

    # Streams

    async def _read_steps(
        self,
        connection: DraftConnection,
        requests: AsyncIterator[draft_pb2.SpeculateRequest],
        context: SpeculateContext,
    ) -> None:
        while (request := await next_within(requests, SILENCE_TIMEOUT_S)) is not None:
            started_s = time.monotonic()
            fault = convert.step_fault(request)
            if fault is not None:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, fault)
            messages = convert.step_from_wire(request)
            if messages:
                self._submit(connection.target, messages)
            if request.HasField("heartbeat"):
                beat = convert.heartbeat_from_wire(request.heartbeat)
                connection.send_heartbeat(self.heartbeat(beat.sequence_number, beat.sent_ns))
            await self._until_looked_at(connection, time.monotonic() - started_s)

    async def _read_sync(
        self, connection: DraftConnection, requests: AsyncIterator[draft_pb2.SyncRequest]
    ) -> None:
        def submit(message: TargetMessage) -> None:
            self._submit(connection.target, [message])

        assembly = OpenAssembly(submit, self.backend.info().max_model_len, connection.deliver)
        async for request in requests:
            started_s = time.monotonic()
            match request.WhichOneof("content"):
                case "open":
                    assembly.start(request.open)
                case "open_tokens":
                    assembly.more(request.open_tokens)
                case "close":
                    submit(convert.close_from_wire(request.close))
            await self._until_looked_at(connection, time.monotonic() - started_s)

    async def _until_looked_at(self, connection: DraftConnection, took_s: float) -> None:
        """Read no further for a target that takes more than its share of the time, or whose
        messages wait for the draft: its own sending then waits, and nobody else's."""
        pause_s = connection.pace.spend(took_s, len(self.connections))
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        caught_up = self.backend.behind(connection.target)
        if caught_up is not None:
            await asyncio.wrap_future(caught_up)

    def heartbeat(self, sequence_number: int, sent_ns: int) -> Heartbeat:
        """The draft's load, with the target's numbers echoed; zeros where nobody asked."""
        beat = self.backend.load()
        beat.sequence_number, beat.sent_ns, beat.draining = sequence_number, sent_ns, self.draining
        return beat


async def _write_responses(connection: DraftConnection, context: SpeculateContext) -> None:
    while True:
        response = await connection.next_response()
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await context.write(response)
