"""How a target learns of draft replicas, and how Serve learns that they are in use.

Every two seconds all draft replicas are asked to describe themselves; the proposer gets the list.
For each a lease is held: one long Serve call, so that Serve counts the replica as busy and lets it
drain before stopping it. A replica that Serve retires is no longer among those asked: its sessions
move and its lease is let go, which is what ends its draining.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ray.serve.handle import DeploymentHandle

from specdec.rpc.remote_proposer import DraftMember

logger = logging.getLogger(__name__)

POLL_S = 2.0
DESCRIBE_TIMEOUT_S = 5.0
LEASE_TIMEOUT_S = 10.0


class Membership:
    """Follows one draft deployment for one target replica, on the replica's event loop."""

    def __init__(
        self,
        draft: DeploymentHandle,
        target_id: str,
        on_change: Callable[[list[DraftMember]], None],
    ) -> None:
        self._draft = draft
        self._target_id = target_id
        self._on_change = on_change
        self._members: dict[str, DraftMember] = {}
        self._leases: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll; call it on the loop that shall own the calls."""
        self._task = asyncio.create_task(self._poll(), name="draft-membership")

    async def stop(self) -> None:
        """Let all leases go."""
        tasks = [task for task in (self._task, *self._leases.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Ask all replicas once. A failed call leaves the members as they were: their own
        heartbeats tell whether they live."""
        try:
            described = await self._draft.broadcast("describe", self._target_id).results_async(
                timeout_s=DESCRIBE_TIMEOUT_S, return_exceptions=True
            )
        except Exception as error:  # no replica, or Serve's controller is away
            logger.debug("draft membership: %s", error)
            described = []
            if "unavailable" not in type(error).__name__.lower():
                return
        members = {m.replica_id: m for m in described if isinstance(m, DraftMember)}
        if members != self._members:
            self._members = members
            self._on_change(list(members.values()))
        self._hold_leases(members)

    async def _poll(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def _hold_leases(self, members: dict[str, DraftMember]) -> None:
        for replica_id in [r for r in self._leases if r not in members]:
            self._leases.pop(replica_id).cancel()
        for replica_id in members:
            lease = self._leases.get(replica_id)
            if lease is None or lease.done():
                self._leases[replica_id] = asyncio.create_task(self._lease(replica_id))

    async def _lease(self, replica_id: str) -> None:
        """Hold one dispatched call open until it is cancelled or the replica ends it."""
        handle = self._draft.options(method_name="lease", stream=True)
        try:
            async with asyncio.timeout(LEASE_TIMEOUT_S) as limit:
                async with handle.choose_replica(replica_id, self._target_id) as selection:
                    response = handle.dispatch(selection, replica_id, self._target_id)
                    try:
                        async for _ in response:
                            limit.reschedule(None)
                    finally:
                        response.cancel()
        except TimeoutError:
            logger.warning("no lease on draft %s within %.0f s", replica_id, LEASE_TIMEOUT_S)
        except Exception as error:  # the replica ended; the next poll decides what follows
            logger.info("lease on draft %s ended: %s", replica_id, error)
