"""The asyncio client: the same results and failures as the blocking one, and cancellation."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from scripted_inference import scripted_server

from specdec import AsyncClient
from specdec.errors import DeadlineError, InvalidRequestError, SpecdecError, UnavailableError
from specdec.v1 import inference_pb2


@pytest.fixture
def server():
    with scripted_server() as running:
        yield running


async def test_stream_and_concurrent_streams(server):
    async with AsyncClient(server.address, api_key="k") as client:

        async def text():
            return "".join([chunk.text async for chunk in client.generate("x", max_tokens=4)])

        assert await asyncio.gather(*(text() for _ in range(3))) == ["one two three four"] * 3
    assert {metadata["authorization"] for metadata in server.metadata} == {"Bearer k"}


async def test_unary_calls(server):
    server.replies["Complete"] = lambda request, context: inference_pb2.CompleteResponse(
        text=request.request.text, finish_reason=1
    )
    server.replies["GetModel"] = lambda request, context: inference_pb2.GetModelResponse(model="m")
    server.replies["Tokenize"] = lambda request, context: inference_pb2.TokenizeResponse(
        token_ids=[1]
    )
    server.replies["Detokenize"] = lambda request, context: inference_pb2.DetokenizeResponse(
        text="a"
    )
    async with AsyncClient(server.address) as client:
        await client.wait_until_connected(30)
        assert (await client.complete("x")).text == "x"
        assert (await client.get_model()).name == "m"
        assert await client.tokenize("a") == [1]
        assert await client.detokenize([1]) == "a"


async def test_failures(server):
    server.replies["GetModel"] = lambda request, context: context.abort(
        grpc.StatusCode.UNAVAILABLE, "draining"
    )
    server.replies["Generate"] = lambda request, context: iter(())
    async with AsyncClient(server.address) as client:
        with pytest.raises(UnavailableError, match="draining"):
            await client.get_model()
        with pytest.raises(InvalidRequestError):
            client.generate("x", max_tokens=-1)
        with pytest.raises(SpecdecError, match="before the generation was finished"):
            _ = [chunk async for chunk in client.generate("x")]


async def test_deadline(server):
    release = threading.Event()

    def hang(request, context):
        release.wait(10)
        yield inference_pb2.GenerateResponse()

    server.replies["Generate"] = hang
    async with AsyncClient(server.address) as client:
        with pytest.raises(DeadlineError):
            _ = [chunk async for chunk in client.generate("x", timeout_s=0.3)]
    release.set()


async def test_cancelling_the_task_cancels_on_the_server(server):
    def endless(request, context):
        while context.is_active():
            yield inference_pb2.GenerateResponse(token_ids=[1], text="a")

    server.replies["Generate"] = endless
    async with AsyncClient(server.address) as client:
        started = asyncio.Event()

        async def read():
            async for _ in client.generate("x"):
                started.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(started.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.cancelled.wait, 30)


async def test_nobody_there():
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match="no server"):
            await client.wait_until_connected(0.2)
