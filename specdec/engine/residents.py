"""Who runs, who waits and who holds blocks: places and KV memory, shared among tenants.

It moves sequences between the queue, the batch and their pause, and knows neither a step's budget
nor whose turn it is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from specdec.config import SchedulerConfig
from specdec.engine.tenants import Tenant, Tenants
from specdec.errors import OverloadedError
from specdec.kvcache.block_manager import BlockManager
from specdec.sequence import Sequence, SequenceStatus


class Residents:
    """All sequences of one engine, each in one of three states: running, waiting or paused.

    Places and blocks are whole while only one tenant wants them. A tenant below its equal share
    of the places takes a free one, or that of the latest arrival of the tenant furthest beyond its
    own, which is recomputed later; whoever is at its share leaves free places to those below. The
    same holds of blocks, for a sequence that stays within its tenant's share of them.

    `lost`: sequences that were preempted in this step, in order; whoever lost one for another's
    share admits none in the same step.
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager) -> None:
        self._config = config
        self._blocks = block_manager
        # Each that runs takes at least one token of the step.
        self._num_places = min(config.max_num_sequences, config.max_num_batched_tokens)
        self._sequences: dict[int, Sequence] = {}  # in order of arrival
        self.tenants = Tenants()
        self.running: list[Sequence] = []  # in order of arrival
        self.num_waiting = 0
        self.lost: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefix_cache_queries = 0
        self.num_prefix_cache_hits = 0

    def find(self, seq_id: int) -> Sequence | None:
        return self._sequences.get(seq_id)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. OverloadedError if its tenant's queue is full."""
        if seq.seq_id in self._sequences:
            raise ValueError(f"sequence {seq.seq_id} was added twice")
        tenant = self.tenants.of(seq)
        if len(tenant.waiting) >= self._config.max_queue:
            raise OverloadedError(f"{len(tenant.waiting)} requests are waiting already")
        seq.status = SequenceStatus.WAITING
        self._sequences[seq.seq_id] = seq
        tenant.waiting.append(seq)
        self.num_waiting += 1

    def remove(self, seq: Sequence, keep_cached: bool = True) -> None:
        """End a sequence and give its blocks back, to be found by later requests or not. Nothing
        happens if it has ended already."""
        if self._sequences.pop(seq.seq_id, None) is None:
            return
        tenant = self.tenants.of(seq)
        self._take_out(seq, tenant)
        self.tenants.forget_if_empty(tenant)
        (self._blocks.release if keep_cached else self._blocks.discard)(seq.block_table)
        seq.status = SequenceStatus.FINISHED

    def recompute(self, seq: Sequence) -> None:
        """Forget what a running sequence has computed but for text in the prefix cache."""
        self._blocks.release(seq.block_table)
        tenant = self.tenants.of(seq)
        seq.block_table, seq.num_computed_tokens = self._acquire_prefix(seq, tenant)

    def pause(self, seq: Sequence) -> None:
        """Out of the batch or the queue; its blocks stay until somebody else needs them."""
        if seq.status in (SequenceStatus.PAUSED, SequenceStatus.FINISHED):
            return
        tenant = self.tenants.of(seq)
        self._take_out(seq, tenant)
        seq.status = SequenceStatus.PAUSED
        tenant.paused.append(seq)

    def resume(self, seq: Sequence) -> None:
        """Back into the queue, where its arrival puts it."""
        if seq.status is SequenceStatus.PAUSED:
            tenant = self.tenants.of(seq)
            tenant.paused.remove(seq)
            self._queue_again(seq, tenant)

    def make_room_for_running(self) -> list[Sequence]:
        """Allocate blocks for all known tokens of the running, preempting others where there are
        none; returns those that outgrew the whole pool, which end. A prefill has had its blocks
        since admission, so only decodes grow here."""
        outgrown = []
        for seq in tuple(self.running):
            while seq.status is SequenceStatus.RUNNING and not self._blocks.ensure_capacity(
                seq.block_table, seq.num_tokens
            ):
                if self._has_outgrown(seq):
                    self.remove(seq)
                    outgrown.append(seq)
                elif not self._take_resting_blocks():
                    victim = self._latest_of_largest(self.tenants)
                    assert victim is not None, "one alone either fits or outgrows the pool"
                    self._preempt(victim)
        return outgrown

    def end_outgrown_waiting(self) -> list[Sequence]:
        """End and return those at the head of a queue that the whole pool can no longer hold, as
        they were paused with their last block full."""
        outgrown = []
        for tenant in tuple(self.tenants):
            while tenant.waiting and self._has_outgrown(tenant.waiting[0]):
                outgrown.append(tenant.waiting[0])
                self.remove(tenant.waiting[0])
        return outgrown

    # -- admission -----------------------------------------------------------------------------

    def has_place(self, tenant: Tenant) -> bool:
        """Whether a tenant may have one more place, be it another's."""
        num_running = len(tenant.running)
        if num_running >= (self._config.max_num_sequences_per_tenant or self._num_places):
            return False
        share = self._place_share()
        num_free = self._num_places - len(self.running)
        if num_running < share:
            return num_free > 0 or self.tenants.furthest_beyond(share) is not None
        return num_free > self.tenants.num_wanted_by_others(tenant, share)

    def allocate(self, tenant: Tenant) -> bool:
        """Blocks for the head of a tenant's queue, resting ones and other tenants' beyond their
        share among them. False where they do not suffice."""
        seq = tenant.waiting[0]
        while not self._allocate_all(seq, tenant):
            if not (self._take_resting_blocks(seq) or self._reclaim_blocks(tenant)):
                return False
        return True

    def admit(self, tenant: Tenant) -> Sequence:
        """Run the head of a tenant's queue, which has its blocks and may have a place."""
        if len(self.running) >= self._num_places:
            loser = self.tenants.furthest_beyond(self._place_share())
            assert loser is not None, "has_place promised a place that is not there"
            self._preempt(loser.running[-1])
        seq = tenant.waiting.popleft()
        self.num_waiting -= 1
        tenant.run(seq)
        insort(self.running, seq, key=_arrival)
        seq.status = SequenceStatus.RUNNING
        return seq

    def is_oldest(self, seq: Sequence) -> bool:
        """Whether it came before all others that are here."""
        return seq.seq_id == next(iter(self._sequences))

    def _place_share(self) -> int:
        """Places that a tenant may have however many others want."""
        share = self.tenants.share(self._num_places)
        return min(share, self._config.max_num_sequences_per_tenant or share)

    def _allocate_all(self, seq: Sequence, tenant: Tenant) -> bool:
        """Blocks for every known token at once, so that a prefill never stops half-way; False and
        no change unless one more stays free for each running sequence to grow into."""
        is_kept = bool(seq.block_table)  # since it was paused
        if is_kept:
            block_table, num_cached_tokens = seq.block_table, seq.num_computed_tokens
        else:
            block_table, num_cached_tokens = self._acquire_prefix(seq, tenant)
        num_new_blocks = self._blocks.blocks_for(seq.num_tokens) - len(block_table)
        if self._blocks.num_free_blocks - num_new_blocks < len(self.running):
            if not is_kept:
                self._blocks.release(block_table)
            return False
        self._blocks.ensure_capacity(block_table, seq.num_tokens)
        seq.block_table = block_table
        seq.num_computed_tokens = num_cached_tokens
        if seq.num_preemptions == 0 and not is_kept:  # a recomputed sequence mostly finds itself
            seq.num_cached_tokens = num_cached_tokens
            self.num_prefix_cache_queries += seq.num_tokens
            self.num_prefix_cache_hits += num_cached_tokens
        return True

    def _acquire_prefix(self, seq: Sequence, tenant: Tenant) -> tuple[list[int], int]:
        if seq.params.prompt_logprobs is not None:
            return [], 0  # a cached prefix has no logits
        memo = tenant.hashes
        if memo is None or memo[:2] != (seq.seq_id, seq.num_tokens):
            hashes = self._blocks.hash_blocks(seq.token_ids, seq.partition)
            memo = tenant.hashes = (seq.seq_id, seq.num_tokens, hashes)
        return self._blocks.acquire_prefix(seq.token_ids, seq.partition, memo[2])

    # -- taking back ---------------------------------------------------------------------------

    def _take_resting_blocks(self, except_for: Sequence | None = None) -> bool:
        """Take the blocks of the latest sequence that computes nothing; False if none has any."""
        resting = [
            seq for tenant in self.tenants for seq in tenant.resting if seq is not except_for
        ]
        latest = max(resting, key=_arrival, default=None)
        if latest is not None:
            self._forget_computed(latest)
        return latest is not None

    def _reclaim_blocks(self, tenant: Tenant) -> bool:
        """For the head of a tenant's queue that stays within its tenant's share of the blocks:
        preempt one sequence of a tenant that is beyond it. False if there is none."""
        share = self.tenants.share(self._blocks.num_blocks)
        num_needed = self._blocks.blocks_for(tenant.waiting[0].num_tokens)
        if tenant.num_blocks + num_needed > share:
            return False
        beyond = [
            other for other in self.tenants if other is not tenant and other.num_blocks > share
        ]
        victim = self._latest_of_largest(beyond)
        if victim is None:
            return False
        self._preempt(victim)
        return True

    def _latest_of_largest(self, tenants: Iterable[Tenant]) -> Sequence | None:
        """Whom to preempt for memory: the latest arrival of whichever tenant holds most, but not
        the oldest sequence of all."""
        able = [t for t in tenants if t.running and not self.is_oldest(t.running[-1])]
        largest = max(able, key=lambda tenant: tenant.num_blocks, default=None)
        return None if largest is None else largest.running[-1]

    def _preempt(self, seq: Sequence) -> None:
        tenant = self.tenants.of(seq)
        self._take_out(seq, tenant)
        self._forget_computed(seq)
        self._queue_again(seq, tenant)
        self.lost.append(seq)

    def _forget_computed(self, seq: Sequence) -> None:
        self._blocks.release(seq.block_table)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self.num_preemptions += 1

    def _has_outgrown(self, seq: Sequence) -> bool:
        return self._blocks.blocks_for(seq.num_tokens) > self._blocks.num_blocks

    def _take_out(self, seq: Sequence, tenant: Tenant) -> None:
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
            tenant.running.remove(seq)
        elif seq.status is SequenceStatus.PAUSED:
            tenant.paused.remove(seq)
        else:
            tenant.waiting.remove(seq)
            self.num_waiting -= 1

    def _queue_again(self, seq: Sequence, tenant: Tenant) -> None:
        seq.status = SequenceStatus.WAITING
        tenant.put_back(seq)
        self.num_waiting += 1


def _arrival(seq: Sequence) -> int:
    return seq.seq_id
