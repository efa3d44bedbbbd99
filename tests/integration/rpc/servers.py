"""Draft servers on loopback, on threads of this process, and links to them that are patient.

How long a busy machine takes must decide nothing: a proposal is waited for as long as it takes, and
only tests of silence make a link take silence for loss.
"""

from __future__ import annotations

import socket

from specdec.rpc.credentials import Metadata, PeerTokens, credentials
from specdec.rpc.draft_link import LinkSettings
from specdec.rpc.draft_server import DraftServer
from specdec.rpc.remote_proposer import DraftMember
from specdec.rpc.transport import LoopThread
from tests.unit.rpc.scripted_draft import TARGET_ID, ScriptedDraft

PROMPT = [1, 2, 3]
# Far beyond what anything takes; it passes only where a test fails.
PATIENCE_S = 60.0
PATIENT = LinkSettings(
    heartbeat_s=0.05,
    suspect_after=1000,
    lost_after=1200,
    connect_timeout_s=PATIENCE_S,
    min_backoff_s=0.02,
    max_backoff_s=0.2,
    misfit_retry_s=0.2,
)


SECRET = b"that of every server in these tests"
TOKENS = PeerTokens(SECRET)


def member_at(port: int, replica_id: str | None = None) -> DraftMember:
    """A draft as discovery tells the target of `identity()` of it."""
    token = TOKENS.issue(TARGET_ID)
    return DraftMember(replica_id or f"draft-{port}", f"127.0.0.1:{port}", token=token)


def credentials_of(target_id: str = TARGET_ID) -> Metadata:
    """What this target shows."""
    return credentials(target_id, TOKENS.issue(target_id))


class Server:
    """A draft server on a thread of its own."""

    def __init__(self, draft: ScriptedDraft, port: int = 0) -> None:
        self.draft = draft
        self._thread = LoopThread("draft-server")
        self.server: DraftServer | None = None
        self.port = port
        self._thread.run(self._start(), PATIENCE_S)

    async def _start(self) -> None:
        self.server = DraftServer(self.draft, tokens=TOKENS)
        self.port = await self.server.start(f"127.0.0.1:{self.port}")

    @property
    def member(self) -> DraftMember:
        return member_at(self.port)

    def drain(self) -> None:
        self._thread.run(self.server.drain(), PATIENCE_S)

    def stop(self) -> None:
        self._thread.run(self.server.stop(0.1), PATIENCE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
