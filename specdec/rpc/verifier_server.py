"""VerifierService: drafters outside the cluster dial in and have their proposals verified.

The same pool and the same engine path as for our own drafts, with the roles of dialling swapped.
A drafter that dials in is not trusted: its laws are ignored, and it gets sessions only while no
draft of our own takes them. It does read the text of those, so only who holds a token may dial in.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specdec.errors import UnavailableError
from specdec.rpc import convert
from specdec.rpc.credentials import Doorkeeper, PeerTokens
from specdec.rpc.draft_member import Member
from specdec.rpc.draft_pool import DraftPool
from specdec.rpc.liveness import Liveness, LivenessSettings, LostError
from specdec.rpc.security import add_port
from specdec.rpc.transport import SERVER_OPTIONS, next_within, until_one_ends
from specdec.speculation.handshake import TargetIdentity, protocol_fault
from specdec.speculation.messages import PROTOCOL_VERSION, DraftInfo, Hello, TargetMessage
from specdec.v1 import verify_pb2, verify_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = "specdec.v1.VerifierService"
INFO_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 5.0
MAX_DRAFTERS = 32

VerifyContext = grpc.aio.ServicerContext[verify_pb2.VerifyRequest, verify_pb2.VerifyResponse]


class _Drafter:
    """One drafter that dialled in: its place in the pool, and its stream."""

    def __init__(
        self, name: str, member: Member, pool: DraftPool, settings: LivenessSettings
    ) -> None:
        self.name = name
        self.member = member
        self.replaced = asyncio.Event()
        self._pool = pool
        self._ready = asyncio.Event()
        self.liveness = Liveness(member, pool, settings, self._ready.set)

    def wake(self) -> None:
        if self.member.step_messages or self.member.bulk_messages:
            self._ready.set()

    async def write(self, context: VerifyContext) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            for response in self._waiting():
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await context.write(response)

    def _waiting(self) -> Iterator[verify_pb2.VerifyResponse]:
        messages: list[TargetMessage] = self._pool.take_step(self.member)
        if (heartbeat := self.liveness.take_heartbeat()) is not None:
            messages.append(heartbeat)
        yield from convert.verify_steps_to_wire(messages)
        while (bulk := self._pool.take_bulk(self.member)) is not None:
            yield from convert.verify_bulk_to_wire(bulk)


class VerifierServer(verify_pb2_grpc.VerifierServiceServicer):
    """Feeds `pool`, and calls `on_output` when that may hold messages for any member. All methods
    run on one event loop."""

    def __init__(
        self,
        pool: DraftPool,
        identity: TargetIdentity,
        tokens: PeerTokens,
        settings: LivenessSettings,
        on_output: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._identity = identity
        self._door = Doorkeeper(tokens)
        self._settings = settings
        self._on_output = on_output
        self._drafters: list[_Drafter] = []
        self._numbers = itertools.count(1)
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises UnavailableError if the address cannot be had."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        verify_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)
        statuses = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
        try:
            port = add_port(server, address)
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {address}: {error}") from error
        await server.start()
        for service in ("", SERVICE):
            await statuses.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        return port

    async def stop(self, grace_s: float = 0.2) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    def wake(self) -> None:
        """Look for messages that wait for drafters."""
        for drafter in self._drafters:
            drafter.wake()

    async def Verify(
        self, requests: AsyncIterator[verify_pb2.VerifyRequest], context: VerifyContext
    ) -> None:
        name = await self._door.admit(context)
        info = await self._checked_info(await next_within(requests, INFO_TIMEOUT_S), context)
        number = next(self._numbers)
        member = self._pool.add_member(f"drafter-{number}", trusted=False)
        drafter = _Drafter(name, member, self._pool, self._settings)
        self._replace(drafter)
        logger.info("drafter %s dialled in as %s", name, member.replica_id)
        try:
            hello = convert.hello_to_wire(self._hello(number))
            await context.write(verify_pb2.VerifyResponse(hello=hello))
            self._pool.member_up(member, info)
            self._on_output()
            await until_one_ends(
                self._read(drafter, requests),
                drafter.write(context),
                drafter.liveness.run(),
                drafter.replaced.wait(),
            )
        except (LostError, TimeoutError) as error:
            logger.warning("%s is lost: %r", member.replica_id, error)
        finally:
            self._drafters.remove(drafter)
            self._pool.member_down(member)
            self._pool.remove_member(member)
            self._on_output()

    def _replace(self, drafter: _Drafter) -> None:
        """One place for each name: who dials in again takes over from the connection before."""
        for other in self._drafters:
            if other.name == drafter.name:
                other.replaced.set()
        self._drafters.append(drafter)

    async def _read(
        self, drafter: _Drafter, requests: AsyncIterator[verify_pb2.VerifyRequest]
    ) -> None:
        async for request in requests:
            drafter.liveness.take(request)
            self._on_output()

    async def _checked_info(
        self, first: verify_pb2.VerifyRequest | None, context: VerifyContext
    ) -> DraftInfo:
        if first is None or not first.HasField("info"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message is the drafter's info"
            )
            raise AssertionError("abort raises")
        info = convert.info_from_wire(first.info)
        fault = protocol_fault(info)
        if fault is None and info.tokenizer_hash != self._identity.tokenizer_hash:
            fault = "the tokenizers differ"
        if fault is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, fault)
        if len({drafter.name for drafter in self._drafters}) >= MAX_DRAFTERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many drafters")
        return info

    def _hello(self, connection: int) -> Hello:
        return Hello(
            target_id=self._identity.target_id,
            incarnation=self._identity.incarnation,
            connection=connection,
            protocol_version=PROTOCOL_VERSION,
            model=self._identity.model,
            vocab_size=self._identity.vocab_size,
        )
