"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import grpc

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


class Client:
    """Talks to `specdec.v1.InferenceService` at `address` ("host:port").

    Every call has a deadline. Failures raise the exceptions of `specdec.errors`; those that a
    request field causes name it in `field`. `credentials` turns on TLS. One client may be used
    from several threads; close it, or use it as a context manager.
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
        self._application = application
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
        self._stub: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self._channel.close()

    def wait_until_connected(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Block until the server accepts connections. Raises UnavailableError after `timeout_s`."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise UnavailableError(f"no server at {self.address} in {timeout_s:g} s") from None

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[True] = True,
        timeout_s: float = GENERATE_TIMEOUT_S,
        api_key: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Chunk]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False],
        timeout_s: float = GENERATE_TIMEOUT_S,
        api_key: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    def generate(
        self,
        prompt: Prompt,
        *,
        stream: bool = True,
        timeout_s: float = GENERATE_TIMEOUT_S,
        api_key: str | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Chunk] | Completion:
        """Continue a text, token ids, or a conversation (a list of role/content mappings).

        Yields one Chunk per engine step, or returns the whole Completion with `stream=False`.
        Closing the iterator cancels the request on the server.
        """
        if not stream:
            return self.complete(prompt, timeout_s=timeout_s, api_key=api_key, **options)
        request = requests.generate_request(prompt, options, timeout_s)
        return self._stream(request, timeout_s, self._metadata(api_key))

    def _stream(
        self, request: inference_pb2.GenerateRequest, timeout_s: float, metadata: Metadata
    ) -> Iterator[Chunk]:
        call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
        finished = False
        try:
            for message in call:
                if message.HasField("error"):
                    raise error_in_band(message.error)
                chunk = results.chunk(message)
                finished = chunk.finish_reason is not None
                yield chunk
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        finally:
            call.cancel()
        if not finished:
            raise cut_short()

    def complete(
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
        return results.completion(self._call(self._stub.Complete, request, timeout_s, api_key))

    def get_model(
        self, model: str = "", *, timeout_s: float = CALL_TIMEOUT_S, api_key: str | None = None
    ) -> ModelInfo:
        """Describe a served model; without a name, the one that is served."""
        request = inference_pb2.GetModelRequest(model=model)
        return results.model_info(self._call(self._stub.GetModel, request, timeout_s, api_key))

    def tokenize(
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
        reply = self._call(self._stub.Tokenize, request, timeout_s, api_key)
        return list(reply.token_ids)

    def detokenize(
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
        return str(self._call(self._stub.Detokenize, request, timeout_s, api_key).text)

    def explain(
        self, request_id: str, *, timeout_s: float = CALL_TIMEOUT_S, api_key: str | None = None
    ) -> tuple[ExplainedSequence, ...]:
        """Why a recent or running request was speculated as it was: one entry for each of its
        sequences. `request_id` is the name that its response gave it.

        Raises RequestNotFoundError where it is not known, not yours, or too long ago.
        """
        request = requests.explain_request(request_id)
        return results.explained(self._call(self._stub.Explain, request, timeout_s, api_key))

    def _metadata(self, api_key: str | None) -> Metadata:
        return call_metadata(api_key or self._api_key, self._application)

    def _call(self, method: Any, request: object, timeout_s: float, api_key: str | None) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata(api_key))
        except grpc.RpcError as error:
            raise error_of_call(error) from None
