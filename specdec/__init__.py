"""specdec: exact speculative decoding as a service.

The package root is the light client's door: importing it loads neither torch nor pydantic, and
grpc only when a client is first asked for. The engine is `specdec.engine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("specdec.client"), name)
    raise AttributeError(f"module 'specdec' has no attribute {name!r}")
