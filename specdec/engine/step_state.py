"""What the controller is told of a step: before K is chosen, and when it has been executed."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from specdec.engine.drafters import Drafters
from specdec.engine.scheduler import Schedule, Scheduler
from specdec.engine.step_builder import Row
from specdec.sequence import Sequence
from specdec.speculation.controller import BatchState, SequenceResult, SequenceState, StepResult


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When a step began, when it asked for proposals, when it ran the target, when it was over."""

    started_s: float
    propose_s: float
    run_s: float
    ended_s: float


def batch_state(
    schedule: Schedule, scheduler: Scheduler, drafters: Drafters, may_wait: bool, now_s: float
) -> tuple[BatchState, list[tuple[str, ...]]]:
    """The coming step, and who may propose for each of its decoding sequences, the preferred one
    first; unless it `may_wait`, only drafters that take no time."""
    options = [_options(sequence, drafters, may_wait) for sequence in schedule.decodes]
    states = [
        _sequence_state(sequence, names, scheduler, drafters)
        for sequence, names in zip(schedule.decodes, options, strict=True)
    ]
    state = BatchState(
        sequences=states,
        num_prefill_tokens=schedule.num_prefill_tokens,
        num_kv_tokens=sum(sequence.num_computed_tokens for sequence in schedule.sequences),
        now_s=now_s,
        num_waiting=scheduler.num_waiting,
        free_kv=1.0 - scheduler.kv_usage,
    )
    return state, options


def _options(sequence: Sequence, drafters: Drafters, may_wait: bool) -> tuple[str, ...]:
    """One at most where K is fixed."""
    is_fixed = sequence.params.speculation.mode == "fixed"
    names = drafters.available(sequence, may_wait or is_fixed)
    return names[:1] if is_fixed else names


def _sequence_state(
    sequence: Sequence, names: tuple[str, ...], scheduler: Scheduler, drafters: Drafters
) -> SequenceState:
    is_fixed = sequence.params.speculation.mode == "fixed"
    return SequenceState(
        seq_id=sequence.seq_id,
        context_len=sequence.num_tokens,
        max_k=min(sequence.max_k, scheduler.draft_room(sequence)) if names else 0,
        fixed_k=sequence.max_k if is_fixed else None,
        drafter=names[0] if names else None,
        label=sequence.tenant,
        confidence=drafters.confidence(sequence, names),
    )


def step_result(
    rows: SequenceOf[Row],
    results: list[SequenceResult],
    num_kv_tokens: int,
    times: StepTimes,
    drafters: Drafters,
) -> StepResult:
    """The executed step."""
    return StepResult(
        num_tokens=sum(row.num_query_tokens for row in rows),
        num_prefill_tokens=sum(row.num_query_tokens for row in rows if not row.is_decode),
        num_kv_tokens=num_kv_tokens,
        propose_s=times.run_s - times.propose_s,
        run_s=times.ended_s - times.run_s,
        step_s=times.ended_s - times.started_s,
        sequences=results,
        now_s=times.ended_s,
        timings=drafters.take_timings(),
        first_tokens_s=tuple(
            times.ended_s - row.sequence.arrival_s
            for row in rows
            if not row.is_decode and (row.sequence.first_token_s or -1.0) >= times.run_s
        ),
    )
