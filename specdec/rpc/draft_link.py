"""The target's connection to one draft replica: connect, check, exchange, notice loss, try again.

Runs on the proposer's event loop for as long as the replica is a member. It decides nothing about
sessions: messages come from and go to the pool.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from specdec.params import shown
from specdec.rpc import convert
from specdec.rpc.credentials import Metadata
from specdec.rpc.draft_member import Member
from specdec.rpc.draft_pool import DraftPool
from specdec.rpc.liveness import Liveness, LivenessSettings, LostError
from specdec.rpc.security import open_channel
from specdec.rpc.transport import until_one_ends
from specdec.speculation.handshake import TargetIdentity, protocol_fault, vocabulary_fault
from specdec.speculation.messages import (
    PROTOCOL_VERSION,
    DraftInfo,
    Hello,
    TargetMessage,
)
from specdec.v1 import draft_pb2, draft_pb2_grpc

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_VOCABULARY = 4_000_000
MAX_VOCABULARY_BYTES = 128 * 2**20
STEADY_S = 2.0
# Why a draft that refuses this target's token is not used; the next description brings a new one.
REFUSED = "draft_refused"
REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings(LivenessSettings):
    """All in seconds."""

    connect_timeout_s: float = 2.0
    vocabulary_timeout_s: float = 20.0
    write_timeout_s: float = 5.0
    min_backoff_s: float = 0.1
    max_backoff_s: float = 2.0
    misfit_retry_s: float = 5.0


class MisfitError(Exception):
    """The draft is alive, but its model or protocol does not fit this target."""


class DraftLink:
    """`credentials` are the target's at this draft. `on_output` is called when the pool may hold
    messages for any member."""

    def __init__(
        self,
        member: Member,
        address: str,
        credentials: Metadata,
        identity: TargetIdentity,
        pool: DraftPool,
        settings: LinkSettings,
        on_output: Callable[[], None],
    ) -> None:
        self._member = member
        self._address = address
        self._credentials = credentials
        self._identity = identity
        self._pool = pool
        self._settings = settings
        self._on_output = on_output
        self._connection = 0
        self._backoff_s = settings.min_backoff_s
        self._step_ready = asyncio.Event()
        self._bulk_ready = asyncio.Event()

    def wake(self) -> None:
        """Look for messages that wait for this member."""
        if self._member.step_messages:
            self._step_ready.set()
        if self._member.bulk_messages:
            self._bulk_ready.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                pause_s = await self._attempt()
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
        finally:
            self._pool.member_down(self._member)
            self._on_output()

    async def _attempt(self) -> float:
        """One connection from dialling to its loss; returns how long to wait before the next."""
        started_s = time.monotonic()
        fault = None
        try:
            await self._connect_and_serve()
        except MisfitError as misfit:
            fault = f"draft_incompatible: {misfit}"
            if self._member.fault != fault:
                logger.error("draft %s at %s: %s", self._member.replica_id, self._address, fault)
        except grpc.aio.AioRpcError as error:
            self._log_loss(error)
            fault = REFUSED if error.code() in REFUSALS else None
        except (LostError, TimeoutError) as error:
            self._log_loss(error)
        except Exception:
            logger.exception("draft link to %s failed", self._address)
        self._pool.member_down(self._member, fault)
        self._on_output()
        if fault is not None:
            return self._settings.misfit_retry_s
        return self._next_backoff(time.monotonic() - started_s)

    def _log_loss(self, error: Exception) -> None:
        level = logging.WARNING if self._member.info is not None else logging.DEBUG
        what = shown(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)
        logger.log(level, "draft %s at %s: %s", self._member.replica_id, self._address, what)

    def _next_backoff(self, lasted_s: float) -> float:
        if lasted_s > STEADY_S + self._settings.connect_timeout_s:
            self._backoff_s = self._settings.min_backoff_s
        pause_s = self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, self._settings.max_backoff_s)
        return pause_s

    async def _connect_and_serve(self) -> None:
        timeout_s = self._settings.connect_timeout_s
        async with open_channel(self._address) as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            wire = await stub.Info(
                draft_pb2.InfoRequest(), timeout=timeout_s, metadata=self._credentials
            )
            info = convert.info_from_wire(wire)
            await self._check(info, stub)
            hello = convert.hello_to_wire(self._hello())
            speculate, sync = stub.Speculate(metadata=self._credentials), None
            async with asyncio.timeout(timeout_s):
                await self._greet(speculate, draft_pb2.SpeculateRequest(hello=hello), info)
                sync = stub.Sync(metadata=self._credentials)
                await self._greet(sync, draft_pb2.SyncRequest(hello=hello), info)
            await self._serve(info, speculate, sync)

    async def _serve(self, info: DraftInfo, speculate: Any, sync: Any) -> None:
        logger.info("draft %s at %s connected", self._member.replica_id, self._address)
        liveness = Liveness(self._member, self._pool, self._settings, self._on_due)
        self._pool.member_up(self._member, info)
        self._on_output()
        await until_one_ends(
            self._write_steps(speculate, liveness),
            self._read_responses(speculate, liveness),
            self._write_bulk(sync),
            self._read_sync(sync),
            liveness.run(),
        )

    def _on_due(self) -> None:
        self._step_ready.set()
        self._on_output()

    # Handshake

    def _hello(self) -> Hello:
        self._connection += 1
        return Hello(
            target_id=self._identity.target_id,
            incarnation=self._identity.incarnation,
            connection=self._connection,
            protocol_version=PROTOCOL_VERSION,
            model=self._identity.model,
            vocab_size=self._identity.vocab_size,
        )

    async def _greet(self, call: Any, first: Any, info: DraftInfo) -> None:
        await call.write(first)
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise LostError(f"refused: {await call.details()}")
        if answer.welcome.incarnation != info.incarnation:
            raise LostError("restarted between Info and Hello")

    async def _check(self, info: DraftInfo, stub: draft_pb2_grpc.DraftServiceStub) -> None:
        """Raise MisfitError unless this draft means the same text by the same token ids."""
        fault = protocol_fault(info)
        if fault is None and info.tokenizer_hash != self._identity.tokenizer_hash:
            fault = "the tokenizers differ"
            if self._identity.vocabulary is not None:
                theirs = await self._fetch_vocabulary(stub)
                fault = vocabulary_fault(self._identity.vocabulary, theirs)
        if fault is not None:
            raise MisfitError(fault)

    async def _fetch_vocabulary(self, stub: draft_pb2_grpc.DraftServiceStub) -> list[str]:
        tokens: list[str] = []
        timeout_s = self._settings.vocabulary_timeout_s
        chunks = stub.Vocabulary(
            draft_pb2.VocabularyRequest(), timeout=timeout_s, metadata=self._credentials
        )
        num_bytes = 0
        async for chunk in chunks:
            num_bytes += chunk.ByteSize()
            if chunk.first_token_id != len(tokens) or len(tokens) > MAX_VOCABULARY:
                raise LostError("the vocabulary came in disorder")
            if num_bytes > MAX_VOCABULARY_BYTES:
                raise LostError("the vocabulary is too large")
            tokens.extend(chunk.tokens)
        return tokens

    # Streams

    async def _write(self, call: Any, message: Any) -> None:
        async with asyncio.timeout(self._settings.write_timeout_s):
            await call.write(message)

    async def _write_steps(self, call: Any, liveness: Liveness) -> None:
        while True:
            await self._step_ready.wait()
            self._step_ready.clear()
            messages: list[TargetMessage] = self._pool.take_step(self._member)
            if (heartbeat := liveness.take_heartbeat()) is not None:
                messages.append(heartbeat)
            for wire in convert.steps_to_wire(messages):
                await self._write(call, wire)

    async def _write_bulk(self, call: Any) -> None:
        while True:
            await self._bulk_ready.wait()
            self._bulk_ready.clear()
            while (message := self._pool.take_bulk(self._member)) is not None:
                for wire in convert.bulk_to_wire(message):
                    await self._write(call, wire)

    async def _read_responses(self, call: Any, liveness: Liveness) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            liveness.take(response)
            self._on_output()
        raise LostError(f"the stream ended: {await call.details()}")

    async def _read_sync(self, call: Any) -> None:
        if await call.read() is not grpc.aio.EOF:
            raise LostError("nothing is expected on Sync after the welcome")
        raise LostError(f"the stream ended: {await call.details()}")
