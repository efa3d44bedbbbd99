"""Who computes what in the next step: continuous batching under one token budget.

Plain Python over lists: no torch, no clock, no I/O. It moves each sequence's
`num_computed_tokens` towards its known tokens; whether those are prompt, or output recomputed
after a preemption, makes no difference. It knows nothing of drafters or of sampling.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specdec.config import SchedulerConfig
from specdec.errors import InvalidRequestError, OverloadedError
from specdec.kvcache.block_manager import BlockManager
from specdec.sequence import Sequence, SequenceStatus


@dataclass(slots=True)
class Schedule:
    """One step. Blocks for every token in it are allocated.

    decodes: compute the last token, and draft tokens behind it (see `Scheduler.reserve_draft`).
    prefills: (sequence, chunk), compute the next `chunk` known tokens. A chunk that reaches
        `num_tokens` yields one new token, from its last row; a shorter one yields none.
    admitted: those of `prefills` that were waiting before, their cached prefix already counted
        in `num_computed_tokens`. A recomputed one may have found all but its last token.
    preempted: back at the head of the queue without blocks, to be recomputed later.
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
    """First come, first served; the latest arrival is the first to be preempted.

    So `running` followed by `waiting` is always in order of arrival: admission takes the head of
    the queue and appends to `running`, preemption takes the last of `running` and puts it at the
    head. The oldest sequence can always go on, which is why nothing waits for ever.

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
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._sequences: dict[int, Sequence] = {}
        self._head_hashes: tuple[int, int, list[bytes]] | None = None
        self._num_budget_tokens_left = 0
        self.num_preemptions = 0
        self.num_prefix_cache_queries = 0
        self.num_prefix_cache_hits = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

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
        """In order of arrival, all before those of `waiting`."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """In order of arrival; preempted sequences are among them."""
        return tuple(self._waiting)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence.

        InvalidRequestError (field `prompt`) if it can never fit; OverloadedError if the queue is
        full.
        """
        self._check_fits(seq)
        if len(self._waiting) >= self.config.max_queue:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting already")
        if seq.seq_id in self._sequences:
            raise ValueError(f"sequence {seq.seq_id} was added twice")
        seq.status = SequenceStatus.WAITING
        self._sequences[seq.seq_id] = seq
        self._waiting.append(seq)

    def abort(self, seq_id: int) -> Sequence | None:
        """End a sequence wherever it is. None if it is unknown or has ended already."""
        seq = self._sequences.get(seq_id)
        if seq is not None:
            self.finish(seq)
        return seq

    def finish(self, seq: Sequence) -> None:
        """End a sequence and give its blocks back. Nothing happens if it has ended already."""
        if self._sequences.pop(seq.seq_id, None) is None:
            return
        if seq.status is SequenceStatus.RUNNING:
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        self._blocks.release(seq.block_table)
        seq.status = SequenceStatus.FINISHED

    def schedule(self, draft_tokens_reserved: int = 0) -> Schedule:
        """Plan the next step: decodes, then prefills under way, then admission.

        `draft_tokens_reserved` tokens of the budget are kept from prefill, so that draft tokens
        find room beside a long prompt; one token of prefill goes through all the same.
        """
        schedule = Schedule()
        self._make_room_for_running(schedule)
        schedule.decodes = [seq for seq in self._running if not _is_prefill(seq)]
        budget = self.config.max_num_batched_tokens - len(schedule.decodes)
        reserved = draft_tokens_reserved if schedule.decodes else 0
        # Whatever is reserved, 1 is left for prefill: all that run had a token in the last step,
        # so there are never more of them than tokens.
        prefill_budget = min(budget, max(1, budget - reserved))
        prefill_budget -= self._continue_prefills(schedule, prefill_budget)
        # A sequence preempted above must not come straight back: it could, where it held copies of
        # blocks that others share.
        if not schedule.preempted:
            self._admit(schedule, prefill_budget)
        self._num_budget_tokens_left = budget - schedule.num_prefill_tokens
        return schedule

    def draft_room(self, seq: Sequence) -> int:
        """The most draft tokens that `reserve_draft` would grant now.

        A step with k draft tokens commits at most k + 1 tokens, so k + 1 must not exceed what
        max_tokens and the context leave. Draft tokens take no other sequence's blocks, and leave
        one block free for each running sequence.
        """
        if _is_prefill(seq) or seq.status is not SequenceStatus.RUNNING:
            return 0
        num_spare_blocks = max(0, self._blocks.num_free_blocks - len(self._running))
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

    def _check_fits(self, seq: Sequence) -> None:
        num_needed = seq.num_tokens + 1
        num_slots = self._blocks.num_blocks * self._blocks.block_size
        limit = min(self._max_model_len, num_slots)
        if num_needed > limit:
            what = "context" if limit == self._max_model_len else "KV cache"
            raise InvalidRequestError(
                f"prompt: has {seq.num_tokens} tokens; with one new token it must fit the {what} "
                f"of {limit} tokens",
                field="prompt",
            )

    def _make_room_for_running(self, schedule: Schedule) -> None:
        """Allocate blocks for all known tokens of the running, oldest first, preempting from the
        other end. A prefill has had its blocks since admission, so only decodes grow here."""
        index = 0
        while index < len(self._running):
            seq = self._running[index]
            if self._blocks.ensure_capacity(seq.block_table, seq.num_tokens):
                index += 1
            elif self._blocks.blocks_for(seq.num_tokens) > self._blocks.num_blocks:
                self.finish(seq)
                schedule.out_of_memory.append(seq)
            else:
                self._preempt_latest(schedule)

    def _preempt_latest(self, schedule: Schedule) -> None:
        seq = self._running.pop()
        self._blocks.release(seq.block_table)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self._waiting.appendleft(seq)
        self.num_preemptions += 1
        schedule.preempted.append(seq)

    def _continue_prefills(self, schedule: Schedule, budget: int) -> int:
        """Give the running prefills their next chunks; returns the tokens spent."""
        left = budget
        for seq in self._running:
            if left and _is_prefill(seq):
                left -= self._schedule_chunk(schedule, seq, left)
        return budget - left

    def _admit(self, schedule: Schedule, budget: int) -> None:
        while budget and self._waiting and len(self._running) < self.config.max_num_sequences:
            seq = self._waiting[0]
            if not self._allocate_all(seq):
                return  # nobody overtakes the head of the queue
            self._waiting.popleft()
            self._running.append(seq)
            seq.status = SequenceStatus.RUNNING
            schedule.admitted.append(seq)
            budget -= self._schedule_chunk(schedule, seq, budget)

    def _schedule_chunk(self, schedule: Schedule, seq: Sequence, budget: int) -> int:
        chunk = min(budget, seq.num_tokens - seq.num_computed_tokens)
        schedule.prefills.append((seq, chunk))
        return chunk

    def _allocate_all(self, seq: Sequence) -> bool:
        """Blocks for every known token at once, so that a prefill never stops half-way; False and
        no change unless one more stays free for each running sequence to grow into."""
        block_table, num_cached_tokens = self._acquire_prefix(seq)
        num_new_blocks = self._blocks.blocks_for(seq.num_tokens) - len(block_table)
        if self._blocks.num_free_blocks - num_new_blocks < len(self._running):
            self._blocks.release(block_table)
            return False
        self._blocks.ensure_capacity(block_table, seq.num_tokens)
        seq.block_table = block_table
        seq.num_computed_tokens = num_cached_tokens
        if seq.num_preemptions == 0:  # a recomputed sequence mostly finds itself
            seq.num_cached_tokens = num_cached_tokens
            self.num_prefix_cache_queries += seq.num_tokens
            self.num_prefix_cache_hits += num_cached_tokens
        return True

    def _acquire_prefix(self, seq: Sequence) -> tuple[list[int], int]:
        if seq.params.prompt_logprobs is not None:
            return [], 0  # a cached prefix has no logits
        return self._blocks.acquire_prefix(seq.token_ids, seq.partition, self._hashes_of(seq))

    def _hashes_of(self, seq: Sequence) -> list[bytes]:
        """The block hashes of the queue's head, kept while it waits for memory."""
        memo = self._head_hashes
        if memo is None or memo[:2] != (seq.seq_id, seq.num_tokens):
            hashes = self._blocks.hash_blocks(seq.token_ids, seq.partition)
            memo = self._head_hashes = (seq.seq_id, seq.num_tokens, hashes)
        return memo[2]


def _is_prefill(seq: Sequence) -> bool:
    """Whether known tokens besides the last are still to be computed, or no token has come out
    yet: the first token is not worth waiting for draft tokens."""
    return seq.num_output_tokens == 0 or not seq.is_decoding
