"""A drafter that dials a target's VerifierService: the other end of `verifier_server`.

Stands on the same DraftBackend as the draft server, so any draft engine can be used outside the
cluster. One connection; whoever runs it decides whether and when to dial again.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import grpc.aio

from specdec.errors import UnavailableError
from specdec.params import shown
from specdec.rpc import convert
from specdec.rpc.credentials import credentials
from specdec.rpc.draft_connection import DraftConnection, OpenAssembly
from specdec.rpc.security import open_channel
from specdec.rpc.transport import until_one_ends
from specdec.speculation.draft_backend import DraftBackend
from specdec.speculation.handshake import hello_fault
from specdec.v1 import verify_pb2, verify_pb2_grpc

DIAL_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 15.0
WRITE_TIMEOUT_S = 15.0


async def draft_for(backend: DraftBackend, address: str, name: str, token: str) -> None:
    """Draft for the target at `address` until the connection ends; cancel to leave. `token` is what
    the target issued for `name`.

    Raises UnavailableError, saying why, where the target cannot be reached or refuses, or has
    been silent for too long.
    """
    async with open_channel(address) as channel:
        stub = verify_pb2_grpc.VerifierServiceStub(channel)
        call = stub.Verify(metadata=credentials(name, token))
        try:
            await _draft(backend, call, await _greet(backend, call, address))
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"target {address}: {shown(error.details())}") from error
        except TimeoutError as error:
            raise UnavailableError(f"target {address} is silent") from error


async def _greet(backend: DraftBackend, call: Any, address: str) -> verify_pb2.VerifyResponse:
    async with asyncio.timeout(DIAL_TIMEOUT_S):
        await call.write(verify_pb2.VerifyRequest(info=convert.info_to_wire(backend.info())))
        first = await call.read()
    if first is grpc.aio.EOF:
        raise UnavailableError(f"target {address} closed the connection")
    return cast("verify_pb2.VerifyResponse", first)


async def _draft(backend: DraftBackend, call: Any, first: verify_pb2.VerifyResponse) -> None:
    hello = convert.hello_from_wire(first.hello)
    fault = hello_fault(hello)
    if fault is not None:
        raise UnavailableError(f"target {hello.target_id}: {fault}")
    connection = DraftConnection(hello, asyncio.get_running_loop())
    backend.attach(connection.target, hello, connection.deliver)
    try:
        await until_one_ends(
            _read(backend, connection, call), _write(connection, call), connection.closed
        )
    finally:
        backend.drop_target(connection.target)


async def _read(backend: DraftBackend, connection: DraftConnection, call: Any) -> None:
    assembly = OpenAssembly(
        lambda message: backend.submit(connection.target, [message]),
        backend.info().max_model_len,
        connection.deliver,
    )
    while True:
        async with asyncio.timeout(SILENCE_TIMEOUT_S):
            response = await call.read()
        if response is grpc.aio.EOF:
            return
        for head in response.opens:
            assembly.start(head)
        for chunk in response.open_tokens:
            assembly.more(chunk)
        if (fault := convert.step_fault(response)) is not None:
            raise UnavailableError(f"target: {fault}")
        if messages := convert.step_from_wire(response):
            backend.submit(connection.target, messages)
        if response.HasField("heartbeat"):
            beat = backend.load()
            beat.sequence_number = response.heartbeat.sequence_number
            beat.sent_ns = response.heartbeat.sent_ns
            connection.send_heartbeat(beat)


async def _write(connection: DraftConnection, call: Any) -> None:
    while True:
        ready = await connection.next_response()
        request = convert.verify_request_to_wire(ready)
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await call.write(request)
