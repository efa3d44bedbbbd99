"""The light client: `Client` and `AsyncClient` over gRPC, with grpcio and protobuf alone.

with Client("localhost:9000") as client:
    for chunk in client.generate("Once upon a time", max_tokens=64):
        print(chunk.text, end="")
"""

from specdec.client.async_client import AsyncClient
from specdec.client.results import (
    Chunk,
    Completion,
    ExplainedSequence,
    ModelInfo,
    PositionLogprobs,
    Speculation,
    Timing,
    TokenLogprob,
    Usage,
)
from specdec.client.sync_client import Client
from specdec.sequence import Explanation

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "Completion",
    "ExplainedSequence",
    "Explanation",
    "ModelInfo",
    "PositionLogprobs",
    "Speculation",
    "Timing",
    "TokenLogprob",
    "Usage",
]
