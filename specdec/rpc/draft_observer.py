"""Who wants to see what passes through a draft server, such as tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specdec.speculation.messages import DraftMessage, TargetMessage


class DraftObserver(Protocol):
    """Sees messages and changes none. Must not block; `sent` comes from the draft's thread, the
    rest from the server's loop. `target` is a connection's name, which never comes again."""

    def received(self, target: str, messages: Sequence[TargetMessage]) -> None: ...

    def sent(self, target: str, messages: Sequence[DraftMessage]) -> None: ...

    def dropped(self, target: str) -> None:
        """The connection is over, and all of its sessions."""
        ...
