"""The scheduler's sequences by tenant, and what each tenant's share of a thing is.

Within a tenant everything is in order of arrival, which sequence ids rise in. It moves no
sequence by itself and knows no budget.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from specdec.sequence import Sequence


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant's sequences. `paused` wait for their reader; they, and those of `waiting` that
    were paused, may still hold blocks. `hashes`: the block hashes of the head of `waiting`, with
    its id and length, kept while it waits for memory."""

    name: str
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    paused: list[Sequence] = field(default_factory=list)
    hashes: tuple[int, int, list[bytes]] | None = None

    @property
    def num_blocks(self) -> int:
        """KV blocks in its tables; one that two of them share counts twice."""
        tables = (seq.block_table for group in self._groups() for seq in group)
        return sum(len(table) for table in tables)

    @property
    def is_active(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def is_empty(self) -> bool:
        return not any(self._groups())

    @property
    def resting(self) -> Iterator[Sequence]:
        """Those that hold blocks and compute nothing, the latest arrival first."""
        idle = [seq for seq in (*self.paused, *self.waiting) if seq.block_table]
        return iter(sorted(idle, key=_arrival, reverse=True))

    def put_back(self, seq: Sequence) -> None:
        """Into the queue where its arrival puts it, near the head."""
        position = 0
        for waiting in self.waiting:
            if waiting.seq_id > seq.seq_id:
                break
            position += 1
        self.waiting.insert(position, seq)

    def run(self, seq: Sequence) -> None:
        insort(self.running, seq, key=_arrival)

    def _groups(self) -> tuple[deque[Sequence] | list[Sequence], ...]:
        return self.running, self.waiting, self.paused


class Tenants:
    """All tenants that have a sequence."""

    def __init__(self) -> None:
        self._by_name: dict[str, Tenant] = {}

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._by_name.values())

    def of(self, seq: Sequence) -> Tenant:
        """The tenant of a sequence that is here, or comes."""
        tenant = self._by_name.get(seq.tenant)
        if tenant is None:
            tenant = self._by_name[seq.tenant] = Tenant(seq.tenant)
        return tenant

    def named(self, name: str) -> Tenant:
        return self._by_name[name]

    def forget_if_empty(self, tenant: Tenant) -> None:
        if tenant.is_empty:
            self._by_name.pop(tenant.name, None)

    def share(self, total: int) -> int:
        """Of `total` places or blocks, what each tenant that runs or waits may have however many
        others want; at least 1."""
        num_active = sum(tenant.is_active for tenant in self)
        return max(1, total // max(1, num_active))

    def num_wanted_by_others(self, tenant: Tenant, share: int) -> int:
        """Places that other tenants wait for and that are theirs."""
        return sum(
            min(len(other.waiting), share - len(other.running))
            for other in self
            if other is not tenant and len(other.running) < share
        )

    def furthest_beyond(self, share: int) -> Tenant | None:
        """The tenant with the most running sequences beyond `share`, None where nobody has."""
        most = max(self, key=lambda tenant: len(tenant.running), default=None)
        return most if most is not None and len(most.running) > share else None


def _arrival(seq: Sequence) -> int:
    return seq.seq_id
