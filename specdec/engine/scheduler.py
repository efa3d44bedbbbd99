"""Who computes what in the next step: continuous batching under one token budget.

Plain Python over lists: no torch, no clock, no I/O. It moves each sequence's
`num_computed_tokens` towards its known tokens; whether those are prompt, or output recomputed
after a preemption, makes no difference. It knows nothing of drafters or of sampling.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specdec.config import PROMPT_LOGPROB_ROWS, SchedulerConfig
from specdec.engine.fair_queue import FairQueue
from specdec.engine.residents import Residents
from specdec.engine.tenants import Tenant
from specdec.errors import InvalidRequestError
from specdec.kvcache.block_manager import BlockManager
from specdec.sequence import Sequence, SequenceStatus

QUANTA_PER_STEP = 4


@dataclass(slots=True)
class Schedule:
    """One step. Blocks for every token in it are allocated.

    decodes: compute the last token, and draft tokens behind it (see `Scheduler.reserve_draft`).
        Those that a reader held up and that go on now are the last.
    prefills: (sequence, chunk), compute the next `chunk` known tokens. A chunk that reaches
        `num_tokens` yields one new token, from its last row; a shorter one yields none.
    admitted: those of `prefills` that were waiting before, their cached prefix already counted
        in `num_computed_tokens`. A recomputed one may have found all but its last token.
    preempted: back at the head of their tenant's queue without blocks, to be recomputed later.
    out_of_memory: ended here, since they outgrew the whole pool: finish reason "length".
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    out_of_memory: list[Sequence] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """All that run in this step."""
        return self.decodes + [seq for seq, _ in self.prefills]

    @property
    def num_prefill_tokens(self) -> int:
        return sum(chunk for _, chunk in self.prefills)

    @property
    def num_tokens(self) -> int:
        """Tokens of the step without draft tokens."""
        return len(self.decodes) + self.num_prefill_tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.decodes and not self.prefills


class Scheduler:
    """First come, first served within a tenant; between tenants, everybody's share.

    Three things are shared, each of them whole while only one tenant wants it: the prompt tokens of
    a step, by turns (`FairQueue`); places and blocks, by equal shares (`Residents`), which are
    enforced by preemption. No place is kept empty for a tenant that may come: that would cost a
    lone tenant its share for good, where a preemption costs one recomputation, most of which the
    prefix cache finds, per sequence of another tenant that it lets in.

    Nothing waits for ever: the oldest sequence of all is never preempted while it runs, and while
    it waits for memory nobody else is admitted; and of a tenant, who is preempted is always its
    latest arrival, which puts it back at the head of the queue.

    A paused sequence, whose reader is behind, has no place and computes nothing. It keeps its
    blocks until somebody else needs them.

    A step: `schedule`, then `reserve_draft` for some of the decodes, run, append the new tokens
    to `Sequence.token_ids`, then `advance` for each sequence that ran and `finish` for those that
    ended. One step is in flight at a time.
    """

    def __init__(
        self, config: SchedulerConfig, block_manager: BlockManager, max_model_len: int
    ) -> None:
        self.config = config
        self._blocks = block_manager
        self._max_model_len = max_model_len
        self._residents = Residents(config, block_manager)
        budget = config.max_num_batched_tokens
        self._turns = FairQueue(max(1, budget // QUANTA_PER_STEP), max_debt=budget)
        self._num_budget_tokens_left = 0
        self._chunks: dict[int, int] = {}  # of the step: prefill tokens by sequence id
        self._num_prompt_rows_left = 0
        self._may_admit = True

    @property
    def num_running(self) -> int:
        return len(self._residents.running)

    @property
    def num_waiting(self) -> int:
        """Those in the queues; what waits for its reader is not among them."""
        return self._residents.num_waiting

    @property
    def has_work(self) -> bool:
        """Whether a step could compute something."""
        return bool(self._residents.running or self._residents.num_waiting)

    @property
    def num_preemptions(self) -> int:
        return self._residents.num_preemptions

    @property
    def num_prefix_cache_queries(self) -> int:
        """Tokens looked for in the prefix cache."""
        return self._residents.num_prefix_cache_queries

    @property
    def num_prefix_cache_hits(self) -> int:
        """Those of them that were found."""
        return self._residents.num_prefix_cache_hits

    @property
    def kv_usage(self) -> float:
        """Used share of the KV blocks, 0 to 1."""
        return self._blocks.usage

    @property
    def num_budget_tokens_left(self) -> int:
        """Draft tokens that the step just scheduled can still take, all sequences together."""
        return self._num_budget_tokens_left

    @property
    def running(self) -> tuple[Sequence, ...]:
        """In order of arrival."""
        return tuple(self._residents.running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Tenant by tenant, each in order of arrival; preempted sequences are among them."""
        return tuple(seq for tenant in self._residents.tenants for seq in tenant.waiting)

    @property
    def paused(self) -> tuple[Sequence, ...]:
        """Those that wait for their reader."""
        return tuple(seq for tenant in self._residents.tenants for seq in tenant.paused)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence, whose id is higher than all before.

        InvalidRequestError (field `prompt`) if it can never fit; OverloadedError if its tenant's
        queue is full.
        """
        self._check_fits(seq)
        self._residents.add(seq)

    def abort(self, seq_id: int) -> Sequence | None:
        """End a sequence wherever it is. None if it is unknown or has ended already."""
        seq = self._residents.find(seq_id)
        if seq is not None:
            self.finish(seq)
        return seq

    def finish(self, seq: Sequence, keep_cached: bool = True) -> None:
        """End a sequence and give its blocks back. Nothing happens if it has ended already.

        `keep_cached`: whether later requests may find its text in the prefix cache.
        """
        self._residents.remove(seq, keep_cached)

    def pause(self, seq: Sequence) -> None:
        """Compute nothing more of a sequence until `resume`; between two steps. It keeps what it
        has computed as long as nobody else needs the memory."""
        self._residents.pause(seq)

    def resume(self, seq: Sequence) -> None:
        """Back into the queue, where its arrival puts it."""
        self._residents.resume(seq)

    def recompute(self, seq: Sequence) -> None:
        """Compute the text of a running sequence again: it keeps its place, and of its blocks those
        with verified text."""
        self._residents.recompute(seq)

    def schedule(self, draft_tokens_reserved: int = 0) -> Schedule:
        """Plan the next step: decodes, then prefills under way and admission by tenants' turns.

        `draft_tokens_reserved` tokens of the budget are kept from prefill, so that draft tokens
        find room beside a long prompt; one token of prefill goes through all the same.
        """
        residents, schedule = self._residents, Schedule()
        schedule.preempted = residents.lost = []
        schedule.out_of_memory = residents.make_room_for_running()
        schedule.out_of_memory += residents.end_outgrown_waiting()
        schedule.decodes = [seq for seq in residents.running if not _is_prefill(seq)]
        budget = self.config.max_num_batched_tokens - len(schedule.decodes)
        reserved = draft_tokens_reserved if schedule.decodes else 0
        # Whatever is reserved, 1 is left for prefill: there are never more running than tokens.
        self._share_out(schedule, min(budget, max(1, budget - reserved)))
        self._leave_out_lost(schedule)
        self._num_budget_tokens_left = self.config.max_num_batched_tokens - schedule.num_tokens
        return schedule

    def draft_room(self, seq: Sequence) -> int:
        """The most draft tokens that `reserve_draft` would grant now.

        A step with k draft tokens commits at most k + 1 tokens, so k + 1 must not exceed what
        max_tokens and the context leave. Draft tokens take no other sequence's blocks, and leave
        one block free for each running sequence.
        """
        if _is_prefill(seq) or seq.status is not SequenceStatus.RUNNING:
            return 0
        num_spare_blocks = max(0, self._blocks.num_free_blocks - self.num_running)
        capacity = (len(seq.block_table) + num_spare_blocks) * self._blocks.block_size
        room = min(
            self._num_budget_tokens_left,
            seq.num_free_output_tokens - 1,
            capacity - seq.num_tokens,
        )
        return max(0, room)

    def reserve_draft(self, seq: Sequence, k: int) -> int:
        """Take budget and blocks for up to `k` draft tokens of a decode in the current step, at
        most once per step; returns how many were granted. Never preempts."""
        granted = min(k, self.draft_room(seq))
        if granted <= 0:
            return 0
        grown = self._blocks.ensure_capacity(seq.block_table, seq.num_tokens + granted)
        assert grown, "draft_room promised blocks that are not there"
        self._num_budget_tokens_left -= granted
        return granted

    def advance(self, seq: Sequence, num_new_computed_tokens: int) -> None:
        """Book what a step computed, after its new tokens were appended to `seq.token_ids`.

        `num_new_computed_tokens`: the chunk of a prefill; for a decode 1 + accepted draft tokens
        (fewer where a stop cut the block). The key-value length of a decode is then the committed
        length - 1, and the blocks of rejected draft tokens are free again. Does nothing for a
        sequence that was aborted while the step ran.
        """
        if seq.status is not SequenceStatus.RUNNING:
            return
        num_computed_tokens = seq.num_computed_tokens + num_new_computed_tokens
        if not seq.num_computed_tokens <= num_computed_tokens <= seq.num_tokens:
            raise ValueError(
                f"cannot add {num_new_computed_tokens} to {seq.num_computed_tokens} computed "
                f"tokens of {seq.num_tokens} committed ones"
            )
        seq.num_computed_tokens = num_computed_tokens
        self._blocks.register_full_blocks(
            seq.block_table, seq.token_ids, num_computed_tokens, seq.partition
        )
        if not _is_prefill(seq):
            self._blocks.truncate(seq.block_table, num_computed_tokens)
        if seq.seq_id not in self._chunks:  # prefill has had its turn
            self._turns.charge(seq.tenant, num_new_computed_tokens)

    def _check_fits(self, seq: Sequence) -> None:
        num_needed = seq.num_tokens + min(1, seq.params.max_tokens)
        num_slots = self._blocks.num_blocks * self._blocks.block_size
        limit = min(self._max_model_len, num_slots)
        if num_needed > limit:
            what = "context" if limit == self._max_model_len else "KV cache"
            raise InvalidRequestError(
                f"prompt: has {seq.num_tokens} tokens; with one new token it must fit the {what} "
                f"of {limit} tokens",
                field="prompt",
            )

    def _share_out(self, schedule: Schedule, budget: int) -> None:
        """Spend up to `budget` tokens on prompts, by turns of the tenants that have some."""
        self._chunks = {}
        self._num_prompt_rows_left = PROMPT_LOGPROB_ROWS
        prefills: dict[str, deque[Sequence]] = {}
        for seq in self._residents.running:
            if _is_prefill(seq):
                prefills.setdefault(seq.tenant, deque()).append(seq)
        # A sequence preempted above must not come straight back: it could, where it held copies of
        # blocks that others share.
        self._may_admit = not schedule.preempted
        self._turns.contend(
            [
                tenant.name
                for tenant in self._residents.tenants
                if tenant.name in prefills or (self._may_admit and tenant.waiting)
            ]
        )
        while budget and (turn := self._turns.turn()) is not None:
            name, credit = turn
            most = budget if credit is None else min(budget, credit)
            num_tokens = self._take_turn(schedule, name, prefills.setdefault(name, deque()), most)
            if num_tokens == 0:
                self._turns.leave(name)
            budget -= num_tokens
            self._turns.spend(name, num_tokens)

    def _take_turn(
        self, schedule: Schedule, name: str, prefills: deque[Sequence], most: int
    ) -> int:
        """Let a tenant compute up to `most` tokens: of its prefills under way, oldest first, then
        of the next one waiting. Returns how many, 0 where there is nothing it could do."""
        while prefills and prefills[0].status is not SequenceStatus.RUNNING:
            prefills.popleft()  # it lost its place to another tenant in this step
        if not prefills:
            seq = self._admit_head(self._residents.tenants.named(name), schedule)
            if seq is None:
                return 0
            if seq in schedule.decodes[-1:]:
                return 1
            prefills.append(seq)
        seq = prefills[0]
        num_left = seq.num_tokens - seq.num_computed_tokens - self._chunks.get(seq.seq_id, 0)
        chunk = min(most, num_left)
        if seq.params.prompt_logprobs is not None:
            # Logits of all its rows are dear in time and memory: some of them in each step.
            chunk = min(chunk, self._num_prompt_rows_left)
            self._num_prompt_rows_left -= chunk
        if chunk == 0:
            return 0
        self._chunks[seq.seq_id] = self._chunks.get(seq.seq_id, 0) + chunk
        if chunk == num_left:
            prefills.popleft()
        return chunk

    def _admit_head(self, tenant: Tenant, schedule: Schedule) -> Sequence | None:
        """Run the head of a tenant's queue, where it may have a place and blocks. One that was
        paused goes on where it was, and is then the last of the decodes."""
        has_lost = any(seq.tenant == tenant.name for seq in schedule.preempted)
        if has_lost or not (self._may_admit and tenant.waiting):
            return None
        if not self._residents.has_place(tenant):
            return None
        seq = tenant.waiting[0]
        was_paused = bool(seq.block_table)
        if not self._residents.allocate(tenant):
            # Others may overtake it, until it is the oldest of all.
            self._may_admit = not self._residents.is_oldest(seq)
            return None
        self._residents.admit(tenant)
        if not was_paused:
            schedule.admitted.append(seq)
        elif not _is_prefill(seq):
            schedule.decodes.append(seq)
        return seq

    def _leave_out_lost(self, schedule: Schedule) -> None:
        """What was planned for sequences that lost their place to another tenant's is off."""
        schedule.prefills = [
            (seq, self._chunks[seq.seq_id])
            for seq in self._residents.running
            if seq.seq_id in self._chunks
        ]
        if schedule.preempted:
            schedule.decodes = [seq for seq in schedule.decodes if _is_running(seq)]
            schedule.admitted = [seq for seq in schedule.admitted if _is_running(seq)]


def _is_running(seq: Sequence) -> bool:
    return seq.status is SequenceStatus.RUNNING


def _is_prefill(seq: Sequence) -> bool:
    """Whether known tokens besides the last are still to be computed, or no token has come out
    yet: the first token is not worth waiting for draft tokens."""
    return seq.num_output_tokens == 0 or not seq.is_decoding
