"""A gRPC InferenceService that plays a script: what the client sends is kept, what it gets is set.

It stands for the server in tests of the client and of the command line, where the point is the
wire and not the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from specdec.v1 import inference_pb2, inference_pb2_grpc

Handler = Callable[[Any, grpc.ServicerContext], Any]


class ScriptedInference(inference_pb2_grpc.InferenceServiceServicer):
    """Set `on_generate` (yields messages) or `replies[method]`; read `requests` and `metadata`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.time_remaining: list[float] = []
        self.replies: dict[str, Handler] = {}
        self.cancelled = threading.Event()
        self.address = ""

    def _receive(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.time_remaining.append(context.time_remaining())

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._receive(request, context)
        context.add_callback(self.cancelled.set)
        yield from self.replies["Generate"](request, context)

    def Complete(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return self.replies["Complete"](request, context)

    def GetModel(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return self.replies["GetModel"](request, context)

    def Tokenize(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return self.replies["Tokenize"](request, context)

    def Detokenize(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return self.replies["Detokenize"](request, context)

    def Explain(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return self.replies["Explain"](request, context)


def two_steps(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """Two steps: the first verified three draft tokens and accepted two, the last one ends."""
    yield inference_pb2.GenerateResponse(
        request_id="r1",
        token_ids=[11, 12, 13],
        text="one two three",
        draft_token_ids=[11, 12, 99],
        num_draft_tokens=3,
        num_accepted_tokens=2,
    )
    last = inference_pb2.GenerateResponse(
        request_id="r1",
        token_ids=[14],
        text=" four",
        finish_reason=inference_pb2.FINISH_REASON_STOP,
        stop_string="END",
    )
    last.usage.num_prompt_tokens = 5
    last.usage.num_output_tokens = 4
    last.speculation.num_steps = 1
    last.speculation.num_drafts = 1
    last.speculation.num_draft_tokens = 3
    last.speculation.num_accepted_tokens = 2
    last.speculation.drafter = "ngram"
    last.speculation.verification = 2
    last.timing.total.FromMilliseconds(1500)
    yield last


@contextmanager
def scripted_server() -> Iterator[ScriptedInference]:
    """A server on a free port of this machine."""
    servicer = ScriptedInference()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    servicer.address = f"127.0.0.1:{port}"
    servicer.replies["Generate"] = two_steps
    server.start()
    try:
        yield servicer
    finally:
        server.stop(grace=None).wait(5)
