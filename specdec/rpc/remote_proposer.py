"""The Proposer that asks draft deployments over gRPC.

The engine's thread calls it; an event loop on a thread of its own speaks to the draft replicas.
Per step one message goes to each replica that is asked, and the engine waits for the answers at
most as long as it says. Whatever happens to a draft costs speed, never a token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from specdec.rpc.credentials import PeerTokens, credentials
from specdec.rpc.draft_link import DraftLink, LinkSettings
from specdec.rpc.draft_member import MemberState
from specdec.rpc.draft_pool import DraftPool
from specdec.rpc.transport import LoopThread
from specdec.rpc.verifier_server import VerifierServer
from specdec.sequence import Sequence
from specdec.speculation.controller.interface import DrafterTiming
from specdec.speculation.draft_counters import DraftCounters
from specdec.speculation.handshake import TargetIdentity
from specdec.speculation.messages import Heartbeat
from specdec.speculation.proposer import Committed, DraftTokens

SHUTDOWN_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class DraftMember:
    """A draft replica as discovery knows it; `incarnation` 0 where it does not know. `token` is
    what this target shows there, issued for its id by that replica."""

    replica_id: str
    address: str
    incarnation: int = 0
    token: str = field(default="", repr=False)


class RemoteProposer:
    """A Proposer over a changing set of draft replicas; until `set_members` there is none."""

    name = "draft"
    takes_time = True

    def __init__(self, identity: TargetIdentity, settings: LinkSettings | None = None) -> None:
        self._identity = identity
        self._settings = settings if settings is not None else LinkSettings()
        self._pool = DraftPool(identity.vocab_size)
        self._thread = LoopThread("draft-links")
        self._links: dict[DraftMember, tuple[DraftLink, asyncio.Task[None]]] = {}
        self._verifier: VerifierServer | None = None
        self._is_shut_down = False
        self._last_ask_s = 0.0
        self._step_s = 0.0

    @property
    def counters(self) -> DraftCounters:
        return self._pool.counters

    def loads(self) -> dict[str, Heartbeat]:
        """The last heartbeat of every connected replica of our own."""
        return self._pool.loads()

    def member_states(self) -> dict[str, MemberState]:
        """Sessions and round trip of every connected replica."""
        return self._pool.member_states()

    def set_members(self, members: Iterable[DraftMember]) -> None:
        """These are the draft replicas from now on. May be called from any thread."""
        self._thread.loop.call_soon_threadsafe(self._apply_members, tuple(members))

    def serve_verifier(self, address: str, tokens: PeerTokens, timeout_s: float = 5.0) -> int:
        """Also let drafters that hold one of `tokens` dial in, at `address`; returns the port.

        Raises UnavailableError if the address cannot be had.
        """
        server = VerifierServer(
            self._pool, self._identity, tokens, self._settings, self._wake_links
        )
        port = self._thread.run(server.start(address), timeout_s)
        self._verifier = server
        return port

    # Proposer

    def open(self, sequences: SequenceOf[Sequence]) -> None:
        self._pool.open(sequences)
        self._wake()

    def available(self, seq_id: int) -> bool:
        return self._pool.available(seq_id)

    def confidence(self, seq_id: int) -> None:
        """It would have to draft to tell."""

    def prepare(self, seq_ids: SequenceOf[int]) -> None:
        """Nothing to do: the draft computes prompts in its own time."""

    def propose(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        self._pool.ask(ks, wait_s, self._deadline_ms(wait_s))
        self._wake()
        return self._pool.collect(ks, wait_s)

    def num_matching(self, seq_id: int, token_ids: SequenceOf[int]) -> None:
        """It would have to draft to tell."""

    def commit(self, results: SequenceOf[Committed]) -> None:
        if self._pool.commit(results):
            self._wake()

    def close(self, seq_ids: SequenceOf[int]) -> None:
        self._pool.close(seq_ids)
        self._wake()

    def disabled_reason(self, seq_id: int) -> str | None:
        return self._pool.disabled_reason(seq_id)

    def take_timing(self) -> DrafterTiming:
        return self._pool.take_timing(self.name)

    def shutdown(self) -> None:
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._thread.run(self._close_links(), SHUTDOWN_TIMEOUT_S)
        self._thread.stop()

    def _deadline_ms(self, wait_s: float) -> float:
        """A proposal that misses this step's wait still serves the next step, one step later."""
        now_s = time.monotonic()
        since_last_s = min(now_s - self._last_ask_s, 1.0)
        self._last_ask_s = now_s
        self._step_s += 0.2 * (since_last_s - self._step_s)
        return 1000 * (max(0.0, wait_s) + self._step_s)

    # On the loop

    def _wake(self) -> None:
        if not self._is_shut_down:
            self._thread.loop.call_soon_threadsafe(self._wake_links)

    def _wake_links(self) -> None:
        for link, _ in self._links.values():
            link.wake()
        if self._verifier is not None:
            self._verifier.wake()

    def _apply_members(self, members: SequenceOf[DraftMember]) -> None:
        members = list({member.replica_id: member for member in members}.values())
        for gone in set(self._links) - set(members):
            _, task = self._links.pop(gone)
            self._pool.remove_member(self._pool.members[gone.replica_id])
            task.cancel()
        for member in members:
            if member not in self._links:
                self._links[member] = self._start_link(member)
        self._wake_links()

    def _start_link(self, member: DraftMember) -> tuple[DraftLink, asyncio.Task[None]]:
        link = DraftLink(
            self._pool.add_member(member.replica_id),
            member.address,
            credentials(self._identity.target_id, member.token),
            self._identity,
            self._pool,
            self._settings,
            self._wake_links,
        )
        return link, self._thread.loop.create_task(link.run())

    async def _close_links(self) -> None:
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        if self._verifier is not None:
            await self._verifier.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
