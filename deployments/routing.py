"""Which replica a Serve call goes to: leases to a named draft, prompts to a warm target.

Routers run inside the calling process (gateway or target). They see the call's arguments and what
replicas report of themselves; they know nothing of engines.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from specdec.engine.request import GenerateRequest

PREFIX_TOKENS = 256
MAX_PREFIXES = 16384
MAX_QUEUE_IMBALANCE = 8.0


class _OwnReplicaRouter(RequestRouter):
    """Gives each pending call the replica that was chosen for it.

    Serve's own way finds the call by its request id, which calls made while serving one request
    share: of the sequences of one request all but one would wait forever. Its FIFO way mixes the
    calls up, and with them what was chosen for whom.
    """

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: RequestMetadata | None = None
    ) -> None:
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                self._cancel_routing_task_for_pending_request(pending)
                self._record_queue_wait_time(pending)
                pending.future.set_result(replica)
                self._remove_pending_request_from_indices(pending)
                return


class PinnedRouter(_OwnReplicaRouter):
    """Sends a call to the replica whose id is its first argument, and to no other.

    A lease is meant for one draft replica; where that one is gone, no replica is offered and the
    caller's deadline ends the attempt.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not pending_request.args:
            return [candidate_replicas]
        wanted = pending_request.args[0]
        return [[r for r in candidate_replicas if r.replica_id.unique_id == wanted]]


class PrefixAffinityRouter(_OwnReplicaRouter):
    """Prefix affinity first, then free KV and queue (design section 2).

    Remembers which replica last served a prompt's leading 256-token pieces, and goes there again
    unless its queue is longer than the shortest by more than `MAX_QUEUE_IMBALANCE`.
    """

    def initialize_state(self, **_: Any) -> None:
        self._homes: OrderedDict[int, str] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if len(candidate_replicas) <= 1 or pending_request is None:
            return [candidate_replicas]
        random.shuffle(candidate_replicas)
        ranked = sorted(candidate_replicas, key=_load)
        home = self._home(prefix_keys(pending_request.args))
        shortest = _load(ranked[0])[0]
        for replica in ranked:
            if replica.replica_id.unique_id == home:
                if _load(replica)[0] - shortest <= MAX_QUEUE_IMBALANCE:
                    return [[replica], ranked]
                break
        return [ranked[:2], ranked]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        for key in prefix_keys(pending_request.args):
            self._homes[key] = replica_id.unique_id
            self._homes.move_to_end(key)
        while len(self._homes) > MAX_PREFIXES:
            self._homes.popitem(last=False)

    def _home(self, keys: Sequence[int]) -> str | None:
        """The replica that has the longest known prefix."""
        for key in reversed(keys):
            if key in self._homes:
                return self._homes[key]
        return None


def prefix_keys(args: Sequence[Any]) -> list[int]:
    """One key per leading piece of the prompt, each covering all pieces before it; the partition
    is part of it, since tenants share no cache."""
    if not args or not isinstance(args[0], GenerateRequest):
        return []
    request, keys = args[0], []
    key = hash(request.partition)
    for end in range(PREFIX_TOKENS, len(request.prompt_token_ids) + 1, PREFIX_TOKENS):
        key = hash((key, tuple(request.prompt_token_ids[end - PREFIX_TOKENS : end])))
        keys.append(key)
    return keys


def _load(replica: RunningReplica) -> tuple[float, float]:
    """(requests waiting or running, fraction of KV in use) as the replica last reported them."""
    stats = replica.routing_stats
    return float(stats.get("num_requests", 0.0)), float(stats.get("kv_usage", 0.0))
