"""The target engine: one step = schedule, plan K, propose, run once, verify, commit.

Synchronous and single-threaded; `async_engine.py` gives it a thread. It owns the committed text
of every sequence. It knows drafters only as Proposers, and neither gRPC nor Ray.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specdec.config import DraftConfig, EngineConfig, SpeculationConfig
from specdec.engine.counters import EngineCounters, EngineStats
from specdec.engine.drafters import Drafters
from specdec.engine.explanations import Explained, Explanations
from specdec.engine.output import OutputState
from specdec.engine.report import PromptLogprobs, output_logprobs, request_metrics
from specdec.engine.request import GenerateRequest, Limits, make_sequence
from specdec.engine.scheduler import Schedule, Scheduler
from specdec.engine.step_builder import Row, build_plan, build_rows, verify_work
from specdec.engine.step_state import StepTimes, batch_state, step_result
from specdec.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelOutputError,
    OverloadedError,
    SpecdecError,
)
from specdec.kvcache.block_manager import BlockManager
from specdec.model.executor import Executor
from specdec.model.token_bytes import TokenBytes
from specdec.params import SamplingParams, validate_prompt
from specdec.sampling.request_logits import RequestLogits
from specdec.sequence import Sequence, SequenceOutput
from specdec.speculation.controller import (
    Controller,
    SequenceResult,
)
from specdec.speculation.controller.acceptance_monitor import AcceptanceMonitor
from specdec.speculation.proposer import Committed, Proposer
from specdec.speculation.verifier import Verdict, verify_step
from specdec.step_plan import StepPlan

MAX_UNDRAFTED_STEPS = 16


@dataclass(slots=True)
class _Live:
    """What the engine keeps beside a Sequence while it lives."""

    sequence: Sequence
    output: OutputState
    prompt_logprobs: PromptLogprobs
    logits: RequestLogits

    @classmethod
    def of(cls, sequence: Sequence, vocabulary: TokenBytes | None) -> _Live:
        params = sequence.params
        eos = frozenset[int]() if params.ignore_eos else sequence.eos_token_ids
        return cls(
            sequence,
            OutputState(sequence, vocabulary),
            PromptLogprobs(sequence),
            RequestLogits(
                params,
                sequence.token_ids,
                sequence.num_prompt_tokens,
                eos.union(params.stop_token_ids),
            ),
        )


class Engine:
    """Continuous batching with speculation over one executor."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        block_manager: BlockManager,
        config: SpeculationConfig,
        limits: Limits,
        proposers: Mapping[str, Proposer],
        controller: Controller,
        tokenizer: Any | None = None,
        acceptance: AcceptanceMonitor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.block_manager = block_manager
        self.config = config
        self.limits = limits
        self.drafters = Drafters(proposers, clock)
        self.controller = controller
        self.explanations = Explanations()
        self.tokenizer = tokenizer
        self._vocabulary = None if tokenizer is None else TokenBytes(tokenizer)
        self.acceptance = acceptance
        self.counters = EngineCounters()
        self._clock = clock
        self._live: dict[int, _Live] = {}
        self._seq_ids = itertools.count(1)
        self._last_num_draft_tokens = 0
        self._num_prefill_steps = 0
        self._may_wait = True

    @classmethod
    def from_config(cls, config: EngineConfig, draft: DraftConfig | None = None) -> Engine:
        """Load the models and build an engine in this process, without Ray or gRPC."""
        from specdec.engine.builder import build_engine  # it imports this module

        return build_engine(config, draft)

    # -- requests ------------------------------------------------------------------------------

    def add_request(self, request: GenerateRequest) -> Sequence:
        """Queue a request. Raises InvalidRequestError or OverloadedError and then keeps nothing."""
        sequence = make_sequence(
            request, next(self._seq_ids), self.config, self.limits, self._clock()
        )
        if request.params.stop and self.tokenizer is None:
            raise InvalidRequestError("stop: needs a tokenizer", field="stop")
        live = _Live.of(sequence, self._vocabulary)
        self.scheduler.add(sequence)
        self._live[sequence.seq_id] = live
        self.explanations.begin(sequence)
        return sequence

    def abort(self, seq_id: int) -> None:
        """End a sequence without further output and free what it holds; unknown ids are ignored."""
        live = self._live.pop(seq_id, None)
        if live is not None:
            self.scheduler.finish(live.sequence)
            self.drafters.close(live.sequence)
            self.controller.close(seq_id)
            self.explanations.finish(live.sequence, "abort")
            self.counters.finished["abort"] += 1

    def pause(self, seq_id: int) -> None:
        """Compute nothing more of a sequence until `resume`, since its reader is behind; between
        two steps. Its deadline counts on. Unknown ids are ignored."""
        if live := self._live.get(seq_id):
            self.scheduler.pause(live.sequence)

    def resume(self, seq_id: int) -> None:
        """Let a paused sequence go on, with the text it would have had."""
        if live := self._live.get(seq_id):
            self.scheduler.resume(live.sequence)

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended; those that are paused are among them."""
        return bool(self._live)

    def stats(self) -> EngineStats:
        """Totals and present state, for metrics; may be read from any thread."""
        scheduler = self.scheduler
        return EngineStats(
            counters=self.counters,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_cache_queries=scheduler.num_prefix_cache_queries,
            num_prefix_cache_hits=scheduler.num_prefix_cache_hits,
            kv_usage=scheduler.kv_usage,
            controller=self._controller_state(),
        )

    def explain(self, request_id: str) -> list[Explained]:
        """Why the sequences of a recent or running request got their K, as far as the controller
        remembers; empty where the request is not known. May be called from any thread."""
        return self.explanations.find(request_id, self.controller)

    def reset_counters(self) -> None:
        """Forget what was counted so far: a warm-up is no traffic."""
        self.counters = EngineCounters()
        self.explanations.clear()
        if self.acceptance is not None:
            self.acceptance.discard()

    def _controller_state(self) -> dict[str, float | str]:
        watched = self.acceptance.gauges() if self.acceptance is not None else {}
        return {**self.controller.snapshot(), **watched}

    def next_token_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Raw logits [V] of the target for the token after `token_ids`, computed apart from every
        running sequence and without cached text: the reference that an audit compares with.

        Raises InvalidRequestError where the text does not fit the context, OverloadedError where it
        does not fit the free blocks.
        """
        validate_prompt(
            token_ids, SamplingParams(), self.limits.vocab_size, self.limits.max_model_len
        )
        table: list[int] = []
        if not self.block_manager.ensure_capacity(table, len(token_ids)):
            raise OverloadedError("not enough free KV blocks for this text")
        try:
            return self._run_alone(token_ids, table)
        finally:
            self.block_manager.release(table)

    def _run_alone(self, token_ids: list[int], table: list[int]) -> torch.Tensor:
        chunk = self.scheduler.config.max_num_batched_tokens
        for start in range(0, len(token_ids), chunk):
            end = min(start + chunk, len(token_ids))
            plan = StepPlan()
            is_last = end == len(token_ids)
            plan.add(token_ids[start:end], start, table, self.executor.block_size, int(is_last))
            logits = self.executor.execute(plan)
        return logits[0]

    def generate(self, requests: list[GenerateRequest]) -> Iterator[SequenceOutput]:
        """Run requests to their end in this thread, yielding each step's outputs as they come."""
        unfinished = {self.add_request(request).seq_id for request in requests}
        try:
            while unfinished:
                for output in self.step():
                    if output.finish_reason is not None:
                        unfinished.discard(output.seq_id)
                    yield output
        finally:
            for seq_id in unfinished:
                self.abort(seq_id)

    def shutdown(self) -> None:
        """Stop drafters and worker ranks, and save what is known of acceptance."""
        self.drafters.shutdown()
        self.executor.shutdown()
        if self.acceptance is not None:
            self.acceptance.close()

    # -- one step ------------------------------------------------------------------------------

    def step(self) -> list[SequenceOutput]:
        """Move every scheduled sequence on by one forward pass; returns what it produced."""
        started_s = self._clock()
        outputs = self._expire(started_s)
        schedule = self.scheduler.schedule(self._last_num_draft_tokens)
        outputs += self._end_out_of_memory(schedule)
        if schedule.is_empty:
            return outputs
        self._may_wait = self._first_tokens_can_wait(schedule)
        self._begin_prefills(schedule)
        started_s += self._prepare_drafters(schedule)  # paid once, so no cost of this step
        ks = self._plan_k(schedule, started_s)
        propose_started_s = self._clock()
        drafts = self.drafters.propose(ks, self._wait_s())
        run_started_s = self._clock()
        rows = build_rows(schedule, ks, drafts)
        logits = self.executor.execute(build_plan(rows, self.executor.block_size))
        requests = {row.sequence.seq_id: self._live[row.sequence.seq_id].logits for row in rows}
        indices, items = verify_work(rows, requests)
        verdicts = verify_step(logits[indices] if len(indices) < len(logits) else logits, items)
        num_kv_tokens = sum(row.sequence.num_computed_tokens for row in rows)
        results, committed = self._commit(rows, logits, verdicts, outputs)
        self.drafters.score(committed, results)
        self.drafters.commit(committed)
        times = StepTimes(started_s, propose_started_s, run_started_s, self._clock())
        self._observe(rows, results, num_kv_tokens, times)
        self.explanations.collect(results, self.controller)
        return outputs

    def _plan_k(self, schedule: Schedule, now_s: float) -> dict[int, int]:
        """k per sequence id, blocks for it reserved; sequences with k = 0 are absent."""
        if not schedule.decodes:
            return {}
        state, options = batch_state(schedule, self.scheduler, self.drafters, self._may_wait, now_s)
        if any(len(names) > 1 for names in options):
            chosen_drafters = self.controller.choose_drafters(state, options)
            for chosen, drafter in zip(state.sequences, chosen_drafters, strict=True):
                chosen.drafter = drafter
        ks = {}
        planned = self.controller.plan(state)
        for sequence, k, chosen in zip(schedule.decodes, planned, state.sequences, strict=True):
            granted = self.scheduler.reserve_draft(sequence, k) if k > 0 else 0
            if granted > 0:
                ks[sequence.seq_id] = granted
                sequence.used_drafter = chosen.drafter
        return ks

    def _first_tokens_can_wait(self, schedule: Schedule) -> bool:
        """A step with a prefill does not wait for a draft, since a first token would wait with it;
        where prefills never end, decoding has its turn after a while."""
        self._num_prefill_steps = self._num_prefill_steps + 1 if schedule.prefills else 0
        return self._num_prefill_steps == 0 or self._num_prefill_steps > MAX_UNDRAFTED_STEPS

    def _wait_s(self) -> float:
        return min(self.controller.wait_s(), self.config.max_wait_ms / 1000)

    def _prepare_drafters(self, schedule: Schedule) -> float:
        """Seconds that drafters spent on what they need once for each sequence."""
        started_s = self._clock()
        if not schedule.prefills:
            self.drafters.prepare(schedule.decodes)
        return self._clock() - started_s

    def _begin_prefills(self, schedule: Schedule) -> None:
        now_s = self._clock()
        for sequence in schedule.admitted:
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now_s
                self.counters.queue.observe(now_s - sequence.arrival_s)
        if self.config.open_drafts == "with_prompt":
            self.drafters.open(schedule.admitted)
        elif self._may_wait:
            self.drafters.open(schedule.decodes)

    # -- after the run -------------------------------------------------------------------------

    def _commit(
        self,
        rows: list[Row],
        logits: torch.Tensor,
        verdicts: list[Verdict | SpecdecError | None],
        outputs: list[SequenceOutput],
    ) -> tuple[list[SequenceResult], list[Committed]]:
        results, committed = [], []
        verdict_of = iter(verdicts)
        first = 0
        for row in rows:
            raw = logits[first : first + row.num_logit_rows]
            first += row.num_logit_rows
            live = self._live[row.sequence.seq_id]
            verdict = next(verdict_of) if row.num_verify_rows else None
            if isinstance(verdict, SpecdecError):
                self.scheduler.finish(row.sequence)
                outputs.append(self._end(live, "error", verdict))
                continue
            is_lawful = live.prompt_logprobs.add(raw[: row.num_prompt_rows])
            if not is_lawful or (row.num_verify_rows and verdict is None):
                outputs += self._without_law(row, live)
                continue
            if verdict is None:
                self.scheduler.advance(row.sequence, row.num_query_tokens)
                continue
            output, result = self._commit_row(row, raw[row.num_prompt_rows :], verdict)
            outputs.append(output)
            if row.is_decode:
                results.append(result)
            elif result.finished:  # a preempted one may end so, and no result tells of it
                self.controller.close(row.sequence.seq_id)
            committed.append(
                Committed(
                    row.sequence.seq_id,
                    output.token_ids,
                    result.num_draft_tokens,
                    result.num_accepted_tokens,
                )
            )
        return results, committed

    def _commit_row(
        self, row: Row, raw: torch.Tensor, verdict: Verdict
    ) -> tuple[SequenceOutput, SequenceResult]:
        sequence, live = row.sequence, self._live[row.sequence.seq_id]
        num_accepted = verdict.num_accepted_tokens
        new = [*row.draft.token_ids[:num_accepted], verdict.next_token_id]
        emitted = live.output.append(new)
        kept = emitted.token_ids
        sequence.round += 1
        sequence.token_ids.extend(kept)
        # Of the query tokens, those whose keys belong to committed text: a decode step leaves
        # exactly the last committed token uncomputed, wherever a stop cut the block.
        self.scheduler.advance(sequence, len(kept) if row.is_decode else row.num_query_tokens)
        self._count(row, num_accepted, len(kept))
        output = SequenceOutput(
            seq_id=sequence.seq_id,
            request_id=sequence.request_id,
            token_ids=kept,
            text=emitted.text,
            logprobs=output_logprobs(sequence, raw, kept),
            draft_token_ids=row.draft.token_ids,
            num_accepted_tokens=num_accepted,
            finish_reason=emitted.finish_reason,
            stop_reason=emitted.stop_reason,
        )
        if sequence.params.speculation.explain:
            output.token_texts = emitted.token_texts
            output.drafter = sequence.used_drafter if row.draft.token_ids else None
        if sequence.num_output_tokens == len(kept) and live.prompt_logprobs.positions:
            output.prompt_logprobs = live.prompt_logprobs.positions
        if emitted.finish_reason is not None:
            self._finish(live, output)
        return output, SequenceResult(
            seq_id=sequence.seq_id,
            drafter=sequence.used_drafter,
            planned_k=row.planned_k,
            num_draft_tokens=len(row.draft.token_ids),
            num_accepted_tokens=num_accepted,
            num_committed_tokens=len(kept),
            finished=emitted.finish_reason is not None,
        )

    def _without_law(self, row: Row, live: _Live) -> list[SequenceOutput]:
        """Rows of a sequence were not finite. Attention reads the keys of draft tokens behind a row
        too, masked, so that one of those may have spoilt all: the text is computed again without
        them, and not drafted for any more. Without draft tokens it is the text itself: it ends."""
        sequence = live.sequence
        if row.draft.token_ids:
            self.drafters.close(sequence)
            sequence.drafters, sequence.max_k = (), 0
            sequence.undrafted_reason = "not_finite"
            self.scheduler.recompute(sequence)
            return []
        self.counters.num_not_finite += 1
        self.scheduler.finish(sequence, keep_cached=False)
        error = ModelOutputError(
            f"the model computed no finite logits after {sequence.num_tokens} tokens of this text"
        )
        return [self._end(live, "error", error)]

    def _count(self, row: Row, num_accepted: int, num_kept: int) -> None:
        sequence, now_s = row.sequence, self._clock()
        self.counters.record_output(sequence, num_kept, now_s)
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        sequence.last_token_s = now_s
        if not row.is_decode:
            self.counters.num_prefill_outputs += 1
            return
        counts = (len(row.draft.token_ids), num_accepted, num_kept)
        sequence.stats.record(*counts)
        self.counters.record_verify(*counts, sequence.traffic_class)

    def _finish(self, live: _Live, output: SequenceOutput) -> None:
        sequence, reason = live.sequence, self._disabled_reason(live.sequence)
        finish_reason = output.finish_reason or "error"
        output.metrics = request_metrics(sequence, reason, self._clock())
        output.metrics.explanations = self.explanations.finish(sequence, finish_reason)
        self.counters.record_end(output.metrics, finish_reason)
        self.scheduler.finish(sequence)
        del self._live[sequence.seq_id]
        self.drafters.close(sequence)

    def _disabled_reason(self, sequence: Sequence) -> str | None:
        if sequence.undrafted_reason is not None:
            return sequence.undrafted_reason
        if not sequence.drafters:
            return "off_by_request" if self.config.max_num_speculative_tokens else "off_by_operator"
        return self.drafters.disabled_reason(sequence)

    # -- ends that no token causes -------------------------------------------------------------

    def _expire(self, now_s: float) -> list[SequenceOutput]:
        late = [
            live
            for live in self._live.values()
            if live.sequence.deadline_s is not None and live.sequence.deadline_s <= now_s
        ]
        error = DeadlineError("the request's timeout passed")
        return [self._end(live, "error", error) for live in late]

    def _end_out_of_memory(self, schedule: Schedule) -> list[SequenceOutput]:
        return [self._end(self._live[s.seq_id], "length") for s in schedule.out_of_memory]

    def _end(
        self, live: _Live, finish_reason: str, error: SpecdecError | None = None
    ) -> SequenceOutput:
        output = SequenceOutput(
            seq_id=live.sequence.seq_id,
            request_id=live.sequence.request_id,
            token_ids=[],
            text=live.output.flush(),
            finish_reason=finish_reason,
            error=error,
        )
        self._finish(live, output)
        self.controller.close(live.sequence.seq_id)
        return output

    def fail_all(self, error: SpecdecError) -> list[SequenceOutput]:
        """End every sequence with `error`: the executor is lost."""
        return [self._end(live, "error", error) for live in list(self._live.values())]

    # -- what the controller learns -------------------------------------------------------------

    def _observe(
        self,
        rows: list[Row],
        results: list[SequenceResult],
        num_kv_tokens: int,
        times: StepTimes,
    ) -> None:
        if self._may_wait:  # else drafting only pauses
            self._last_num_draft_tokens = sum(result.num_draft_tokens for result in results)
        result = step_result(rows, results, num_kv_tokens, times, self.drafters)
        self.counters.record_step(result)
        self.controller.observe(result)
        if self.acceptance is not None:
            temperatures = {
                row.sequence.seq_id: row.sequence.params.law_temperature for row in rows
            }
            self.acceptance.observe(result, temperatures)
