"""A target replica in virtual time: one step after the other, as the engine makes them.

Drives a real `Controller`: it plans k, says how long the step may wait for a draft that is apart,
and learns from what came out. What arrives, and when, is the fleet's business.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from specdec.simulation.costs import StepCost
from specdec.simulation.policies import LOCAL_DRAFTERS
from specdec.simulation.requests import Ints, SimulatedRequest
from specdec.simulation.rows import Outcome, Rows, asked_of
from specdec.simulation.service.admission import Admission, Chunks, Job, Limits
from specdec.simulation.service.drafts import NAME as APART
from specdec.simulation.service.drafts import DraftLink
from specdec.simulation.service.events import Events
from specdec.simulation.service.records import Record, Totals
from specdec.speculation.controller.interface import (
    BatchState,
    Controller,
    DrafterTiming,
    SequenceState,
    StepResult,
)

# Where prefills never end, decoding has its turn after so many steps, as in the engine.
MAX_UNDRAFTED_STEPS = 16


@dataclass(slots=True)
class _Step:
    """A step in flight. ks: granted; drafted: in hand when it runs. beside_s: seconds of drafters
    that share the target's GPUs."""

    started_s: float
    chunks: Chunks
    states: list[SequenceState]
    drafter_of: list[str | None]
    planned: list[int]
    ks: Ints
    num_kv_tokens: int
    beside_s: dict[str, float] = field(default_factory=dict)
    wait_s: float | None = None
    drafted: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    num_late: int = 0
    runs: bool = False

    @property
    def propose_s(self) -> float:
        return sum(self.beside_s.values())


class TargetReplica:
    """One target with its queue and its controller.

    link: the way to drafts apart, or None where all drafters share the target's GPUs.
    max_undrafted_steps: steps with prompts in a row that do not wait for drafters.
    on_finished: called with each request that ended, or was refused.
    """

    def __init__(
        self,
        events: Events,
        controller: Controller,
        cost: StepCost,
        limits: Limits,
        drafters: tuple[str, ...],
        max_k: int,
        record: Record,
        link: DraftLink | None = None,
        max_undrafted_steps: int = MAX_UNDRAFTED_STEPS,
        on_finished: Callable[[SimulatedRequest], None] = lambda _: None,
    ) -> None:
        self.controller = controller
        self._events = events
        self._cost = cost
        self._drafters = drafters
        self._max_k = max_k
        self._record = record
        self._link = link
        self._max_undrafted_steps = max_undrafted_steps
        self._on_finished = on_finished
        self._admission = Admission(limits)
        self._rows = Rows(drafters, max_k, LOCAL_DRAFTERS)
        self._jobs: dict[int, Job] = {}
        self._is_running = False
        self.waited_s = 0.0  # of all steps so far
        self._num_prefill_steps = 0
        self._may_wait = True
        self._num_reserved = 0

    @property
    def num_requests(self) -> int:
        """All that have not ended here."""
        return self.num_running + self.num_waiting

    @property
    def num_running(self) -> int:
        return len(self._rows) + len(self._admission.prefilling)

    @property
    def num_waiting(self) -> int:
        return len(self._admission.waiting)

    @property
    def usage(self) -> float:
        """Taken share of the KV or of the places, whichever is more."""
        limits = self._admission.limits
        held = self._rows.num_kv_tokens + self._admission.num_reserved_tokens
        return max(held / limits.kv_capacity_tokens, self.num_running / limits.max_num_sequences)

    def submit(self, request: SimulatedRequest) -> None:
        """A request arrives. One that could never be held is refused."""
        now_s = self._events.now_s
        if self._record.covers(now_s):
            self._record.num_arrived += 1
        if not self._admission.fits(request):
            self._record.num_refused += self._record.covers(now_s)
            self._on_finished(request)
            return
        self._admission.waiting.append(Job(request, now_s))
        if not self._is_running:
            self._begin_soon()

    # -- a step: schedule, plan, propose, run, commit ---------------------------------------------

    def _begin_soon(self) -> None:
        """After all else that happens at this moment, such as arrivals."""
        self._is_running = True
        self._events.after(0.0, self._begin)

    def _begin(self) -> None:
        has_preempted = self._make_room()
        rows = self._rows
        num_kv_tokens = rows.num_kv_tokens
        chunks = self._admission.schedule(
            len(rows), num_kv_tokens, self._num_reserved, may_admit=not has_preempted
        )
        if not len(rows) and not chunks.parts:
            self._is_running = False
            return
        num_kv_tokens += sum(job.num_computed for job in self._admission.prefilling)
        self._propose(self._plan(chunks, num_kv_tokens))

    def _make_room(self) -> bool:
        """Preempt the latest where the decoding sequences have no room for one token each; whether
        that was so."""
        rows, admission = self._rows, self._admission
        num_before = len(rows)
        capacity = admission.limits.kv_capacity_tokens
        while len(rows) > 1 and (
            rows.num_kv_tokens + admission.num_reserved_tokens + len(rows) > capacity
        ):
            last = np.arange(len(rows)) == len(rows) - 1
            job = self._jobs.pop(rows.seq_ids[-1])
            job.position = int(rows.positions[-1])
            self._record.num_preempted += self._record.covers(self._events.now_s)
            for seq_id in rows.drop(last):
                self.controller.close(seq_id)
            admission.preempt(job)
        return len(rows) < num_before

    def _plan(self, chunks: Chunks, num_kv_tokens: int) -> _Step:
        states = self._rows.states()
        options = self._options(bool(chunks.parts), num_kv_tokens)
        room = self._draft_room(chunks, num_kv_tokens)
        for state in states:
            state.drafter = options[0] if options else None
            state.max_k = min(state.max_k, room) if options else 0
        batch = BatchState(states, chunks.num_tokens, num_kv_tokens, self._events.now_s)
        if len(options) > 1 and states:
            chosen = self.controller.choose_drafters(batch, [options] * len(states))
            for state, drafter in zip(states, chosen, strict=True):
                state.drafter = drafter
        planned = self.controller.plan(batch) if states else []
        ks = _granted(planned, room)
        drafter_of = [state.drafter for state in states]
        return _Step(
            self._events.now_s, chunks, states, drafter_of, planned, ks, num_kv_tokens, drafted=ks
        )

    def _options(self, has_prefill: bool, num_kv_tokens: int) -> tuple[str, ...]:
        """Who may draft now: first tokens do not wait for drafters that take time, unless prompts
        come without end."""
        self._num_prefill_steps = self._num_prefill_steps + 1 if has_prefill else 0
        self._may_wait = not 0 < self._num_prefill_steps <= self._max_undrafted_steps
        link = self._link
        return tuple(
            name
            for name in self._drafters
            if name in LOCAL_DRAFTERS
            or (self._may_wait and (name != APART or not link or link.is_available(num_kv_tokens)))
        )

    def _draft_room(self, chunks: Chunks, num_kv_tokens: int) -> int:
        """Draft tokens that the step has room for, in its budget and in KV."""
        limits, num_rows = self._admission.limits, len(self._rows)
        budget = limits.max_num_batched_tokens - num_rows - chunks.num_tokens
        held = self._rows.num_kv_tokens + self._admission.num_reserved_tokens
        return max(min(budget, limits.kv_capacity_tokens - held - num_rows), 0)

    def _propose(self, step: _Step) -> None:
        asked = asked_of(step.drafter_of, step.ks.tolist())
        apart = asked.pop(APART, None) if self._link is not None else None
        step.drafted = self._rows.offered(step.drafter_of, step.ks)
        step.beside_s = {name: self._cost.propose_s({name: each}) for name, each in asked.items()}
        if apart is None or self._link is None:
            self._run(step)
            return
        wait_s = self.controller.wait_s()
        # What a step does not wait for comes too late for it.
        self._link.ask(*apart, lambda: self._answered(step))
        self._events.after(wait_s, lambda: self._timed_out(step))

    def _answered(self, step: _Step) -> None:
        if not step.runs:
            step.wait_s = self._events.now_s - step.started_s
            self._run(step)

    def _timed_out(self, step: _Step) -> None:
        if not step.runs:
            step.wait_s = self._events.now_s - step.started_s
            is_late = np.array([drafter == APART for drafter in step.drafter_of], dtype=bool)
            step.num_late = int((is_late & (step.ks > 0)).sum())
            step.drafted = np.where(is_late, 0, step.drafted)
            self._run(step)

    def _run(self, step: _Step) -> None:
        step.runs = True
        decoding = len(step.states) + int(step.drafted.sum())
        run_s = self._cost.run_s(decoding, step.num_kv_tokens)
        run_s += step.chunks.num_tokens * self._cost.prefill_token_s
        self._events.after(step.propose_s + run_s, lambda: self._end(step, run_s))

    def _end(self, step: _Step, run_s: float) -> None:
        rows = self._rows
        scores = rows.scores()
        outcome = rows.verify(step.drafter_of, step.drafted)
        prefilled = self._admission.advance(step.chunks)
        self._observe(step, run_s, outcome, scores, prefilled)
        self._count(step, outcome, len(prefilled))
        for seq_id in rows.drop(outcome.finished):
            self._finish(self._jobs.pop(seq_id))
        self._start_decoding(prefilled)
        self._begin_soon()

    def _observe(
        self,
        step: _Step,
        run_s: float,
        outcome: Outcome,
        scores: dict[str, Ints],
        prefilled: SequenceOf[Job],
    ) -> None:
        now_s = self._events.now_s
        results = self._rows.results(step.drafter_of, step.planned, step.drafted, outcome, scores)
        self.controller.observe(
            StepResult(
                num_tokens=len(step.states) + int(step.drafted.sum()) + step.chunks.num_tokens,
                num_prefill_tokens=step.chunks.num_tokens,
                num_kv_tokens=step.num_kv_tokens,
                propose_s=step.propose_s + (step.wait_s or 0.0),
                run_s=run_s,
                step_s=now_s - step.started_s,
                sequences=results,
                now_s=now_s,
                timings=self._timings(step),
                first_tokens_s=tuple(
                    now_s - job.arrived_s for job in prefilled if job.first_token_s is None
                ),
            )
        )

    def _timings(self, step: _Step) -> tuple[DrafterTiming, ...]:
        """Drafters beside the target compute while they are waited for."""
        timings = [
            DrafterTiming(name, draft_s=seconds, waited_s=seconds)
            for name, seconds in step.beside_s.items()
        ]
        if self._link is not None:
            timings.append(self._link.take_timing(step.wait_s))
        return tuple(timings)

    def _count(self, step: _Step, outcome: Outcome, num_prefilled: int) -> None:
        now_s = self._events.now_s
        counts = Totals(
            num_steps=1,
            step_s=now_s - step.started_s,
            wait_s=step.wait_s or 0.0,
            num_committed=int(outcome.num_committed.sum()) + num_prefilled,
            num_drafted=int(step.drafted.sum()),
            num_accepted=int(outcome.num_accepted.sum()),
            num_decodes=len(step.states),
            num_late=step.num_late,
            num_queued=len(self._admission.waiting),
        )
        self.waited_s += counts.wait_s
        self._record.step(now_s, counts)
        if self._may_wait:  # else drafting only pauses, and wants its room back
            self._num_reserved = counts.num_drafted

    def _start_decoding(self, jobs: SequenceOf[Job]) -> None:
        """The last row of a prompt gives one token."""
        now_s = self._events.now_s
        for job in jobs:
            job.position += 1
            if job.first_token_s is None:
                job.first_token_s = now_s
                self._record.first_token(now_s, job.arrived_s)
            if job.position >= job.request.output_len:
                self._finish(job)
            else:
                job.seq_id = self._rows.add(job.request, job.position)
                self._jobs[job.seq_id] = job

    def _finish(self, job: Job) -> None:
        assert job.first_token_s is not None
        now_s = self._events.now_s
        self._record.finished(now_s, job.arrived_s, job.first_token_s, job.request.output_len)
        self._on_finished(job.request)


def _granted(planned: SequenceOf[int], room: int) -> Ints:
    """What is left of the plan where the step has room for `room` draft tokens, in order."""
    ks = np.array(planned, dtype=np.int64)
    before = np.concatenate(([0], ks.cumsum()[:-1])) if len(ks) else ks
    granted: Ints = np.clip(room - before, 0, ks)
    return granted
