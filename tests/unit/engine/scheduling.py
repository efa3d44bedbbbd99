"""A scheduler on its own, for tests: sequences, and what a step would have computed of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from specdec.config import SchedulerConfig
from specdec.engine.scheduler import Schedule, Scheduler
from specdec.kvcache.block_manager import BlockManager
from specdec.params import SamplingParams
from specdec.sequence import Sequence, Verification

_ids = itertools.count()


def make_sequence(
    prompt: list[int] | int,
    max_tokens: int = 100,
    max_model_len: int = 1000,
    partition: str = "",
    prompt_logprobs: int | None = None,
    tenant: str | None = None,
) -> Sequence:
    """A sequence; a number as the prompt means so many tokens that no other sequence has."""
    seq_id = next(_ids)
    if isinstance(prompt, int):
        prompt = [1000 * (seq_id + 1) + i for i in range(prompt)]
    return Sequence(
        seq_id=seq_id,
        request_id=f"request-{seq_id}",
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs),
        seed=0,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset(),
        max_model_len=max_model_len,
        partition=partition,
        traffic_class=tenant,
    )


def make_scheduler(
    num_blocks: int = 100,
    block_size: int = 4,
    max_num_sequences: int = 8,
    budget: int = 64,
    max_queue: int = 100,
    max_model_len: int = 1000,
    max_num_sequences_per_tenant: int | None = None,
) -> tuple[Scheduler, BlockManager]:
    manager = BlockManager(num_blocks, block_size, True)
    config = SchedulerConfig(
        max_num_sequences=max_num_sequences,
        max_num_batched_tokens=budget,
        max_queue=max_queue,
        max_num_sequences_per_tenant=max_num_sequences_per_tenant,
        max_model_len=max_model_len,
    )
    return Scheduler(config, manager, max_model_len), manager


def run_step(
    scheduler: Scheduler, reserved: int = 0, next_token: Callable[[Sequence], int] = lambda _: 7
) -> Schedule:
    """One step without drafts."""
    schedule = scheduler.schedule(reserved)
    for seq in schedule.decodes:
        seq.token_ids.append(next_token(seq))
        scheduler.advance(seq, 1)
    for seq, chunk in schedule.prefills:
        if seq.num_computed_tokens + chunk == seq.num_tokens:
            seq.token_ids.append(next_token(seq))
        scheduler.advance(seq, chunk)
    return schedule


def verify(scheduler: Scheduler, seq: Sequence, draft: list[int], num_accepted: int) -> int:
    """Verify `draft` behind a scheduled decode; returns how many drafts were granted."""
    granted = scheduler.reserve_draft(seq, len(draft))
    num_accepted = min(num_accepted, granted)
    seq.token_ids.extend([*draft[:num_accepted], 7])
    scheduler.advance(seq, 1 + num_accepted)
    return granted


def decoding(scheduler: Scheduler, *sequences: Sequence) -> None:
    """Bring sequences to the point where each has one token of output."""
    for seq in sequences:
        scheduler.add(seq)
    while any(not s.is_decoding or s.num_output_tokens == 0 for s in sequences):
        run_step(scheduler)
