"""What a draft engine offers to whoever carries its messages (design section 4).

The gRPC server of a draft replica speaks to this interface only, so that the engine behind it
knows nothing of the network, and tests can put a scripted draft in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from specdec.speculation.messages import (
    DraftInfo,
    DraftMessage,
    Heartbeat,
    Hello,
    TargetMessage,
)

Deliver = Callable[[list[DraftMessage]], None]


class DraftBackend(Protocol):
    """A draft that serves several targets at once; state is kept per (target, session).

    Every method may be called from any thread, returns at once and never waits for the model.
    `target` names one connection of one target; it is never used again after `drop_target`.
    """

    def info(self) -> DraftInfo:
        """What the `Info` handshake tells."""
        ...

    def vocabulary(self) -> Sequence[str]:
        """The tokenizer's tokens by id, as it writes them; "" for an id without a token."""
        ...

    def attach(self, target: str, hello: Hello, deliver: Deliver) -> None:
        """Take up a target. `deliver` takes all messages that are ready together; it may be
        called from any thread and does not block."""
        ...

    def submit(self, target: str, messages: list[TargetMessage]) -> None:
        """Hand over what one target sent, in order. Messages of an unknown target are dropped."""
        ...

    def behind(self, target: str) -> Future[None] | None:
        """Where so much of what this target sent is still to be looked at that the caller should
        read no more of it: done when it may."""
        ...

    def drop_target(self, target: str) -> None:
        """The target is gone: free all its sessions. `deliver` is not called afterwards."""
        ...

    def load(self) -> Heartbeat:
        """The draft's load now; the caller fills in `sequence_number` and `sent_ns`."""
        ...
