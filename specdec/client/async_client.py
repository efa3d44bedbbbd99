"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Unpack

import grpc
import grpc.aio

from specdec.client import requests, results
from specdec.client.connection import (
    CALL_TIMEOUT_S,
    CHANNEL_OPTIONS,
    GENERATE_TIMEOUT_S,
    Metadata,
    call_metadata,
    checked_address,
    cut_short,
)
from specdec.client.requests import GenerateOptions, Message, Prompt
from specdec.client.results import Chunk, Completion, ExplainedSequence, ModelInfo
from specdec.client.status import error_in_band, error_of_call
from specdec.errors import UnavailableError
from specdec.v1 import inference_pb2, inference_pb2_grpc


class AsyncClient:
    """Talks to `specdec.v1.InferenceService` at `address` ("host:port") from one event loop.

    The same calls, deadlines and exceptions as `Client`. The connection is made on the first call,
    in the loop that makes it.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        application: str | None = None,
    ) -> None:
        self.address = checked_address(address)
        self._api_key = api_key
        self._credentials = credentials
        self._application = application
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def __aenter__(self) -> AsyncClient:
        self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _connect(self) -> grpc.aio.Channel:
        if self._channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(
                    self.address, self._credentials, options=CHANNEL_OPTIONS
                )
            self._channel = channel
            self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return self._channel

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None

    async def wait_until_connected(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Wait until the server accepts connections. Raises UnavailableError after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect().channel_ready()
        except TimeoutError:
            raise UnavailableError(f"no server at {self.address} in {timeout_s:g} s") from None

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout_s: float = GENERATE_TIMEOUT_S,
        api_key: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[Chunk]:
        """Continue a text, token ids, or a conversation: one Chunk per engine step.

        Closing the iterator, or cancelling the task, cancels the request on the server. The whole
        continuation at once: `complete`.
        """
        request = requests.generate_request(prompt, options, timeout_s)
        return self._stream(request, timeout_s, self._metadata(api_key))

    async def _stream(
        self, request: inference_pb2.GenerateRequest, timeout_s: float, metadata: Metadata
    ) -> AsyncIterator[Chunk]:
        self._connect()
        call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
        finished = False
        try:
            async for message in call:
                if message.HasField("error"):
                    raise error_in_band(message.error)
                chunk = results.chunk(message)
                finished = chunk.finish_reason is not None
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from None
        finally:
            call.cancel()
        if not finished:
            raise cut_short()

    async def complete(
        self,
        prompt: Prompt,
        *,
        timeout_s: float = GENERATE_TIMEOUT_S,
        api_key: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Continue a prompt and return the whole continuation."""
        request = inference_pb2.CompleteRequest(
            request=requests.generate_request(prompt, options, timeout_s)
        )
        return results.completion(await self._call("Complete", request, timeout_s, api_key))

    async def get_model(
        self, model: str = "", *, timeout_s: float = CALL_TIMEOUT_S, api_key: str | None = None
    ) -> ModelInfo:
        """Describe a served model; without a name, the one that is served."""
        request = inference_pb2.GetModelRequest(model=model)
        return results.model_info(await self._call("GetModel", request, timeout_s, api_key))

    async def tokenize(
        self,
        prompt: str | Sequence[Message],
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        api_key: str | None = None,
    ) -> list[int]:
        """Token ids of a text, or of a conversation under the model's chat template."""
        request = requests.tokenize_request(prompt, model, add_special_tokens)
        return list((await self._call("Tokenize", request, timeout_s, api_key)).token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        api_key: str | None = None,
    ) -> str:
        """The text of token ids."""
        request = requests.detokenize_request(token_ids, model, skip_special_tokens)
        return str((await self._call("Detokenize", request, timeout_s, api_key)).text)

    async def explain(
        self, request_id: str, *, timeout_s: float = CALL_TIMEOUT_S, api_key: str | None = None
    ) -> tuple[ExplainedSequence, ...]:
        """Why a recent or running request was speculated as it was: one entry for each of its
        sequences. `request_id` is the name that its response gave it.

        Raises RequestNotFoundError where it is not known, not yours, or too long ago.
        """
        request = requests.explain_request(request_id)
        return results.explained(await self._call("Explain", request, timeout_s, api_key))

    def _metadata(self, api_key: str | None) -> Metadata:
        return call_metadata(api_key or self._api_key, self._application)

    async def _call(self, name: str, request: object, timeout_s: float, api_key: str | None) -> Any:
        self._connect()
        method = getattr(self._stub, name)
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata(api_key))
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from None
