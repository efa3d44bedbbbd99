"""A closed loop at fixed concurrency: finished sequences are replaced at once, prefill is free.

The setting in which policies for K are compared on recorded requests: all that differs between two
runs is what the policy decided. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from specdec.simulation.costs import StepCost
from specdec.simulation.oracle import Oracle
from specdec.simulation.policies import LOCAL_DRAFTERS
from specdec.simulation.requests import Ints, SimulatedRequest
from specdec.simulation.rows import Rows, asked_of
from specdec.speculation.controller.interface import BatchState, Controller, StepResult

WARM_UP_STEPS = 200
LASTING_STEPS = 3


@dataclass(slots=True)
class LoopResult:
    """What the steps after warm-up committed, and how. `num_switches`: see `Switches`."""

    num_steps: int = 0
    seconds: float = 0.0
    num_committed: int = 0
    num_sequence_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_switches: int = 0
    num_finished: int = 0
    steps_by_k: dict[int, int] = field(default_factory=dict)

    def add(self, other: LoopResult) -> None:
        """Count what `other` counted, too."""
        for member in fields(self):
            if member.name != "steps_by_k":
                mine = getattr(self, member.name)
                setattr(self, member.name, mine + getattr(other, member.name))
        for k, count in other.steps_by_k.items():
            self.steps_by_k[k] = self.steps_by_k.get(k, 0) + count

    @property
    def goodput_tokens_per_s(self) -> float:
        return self.num_committed / self.seconds

    @property
    def mean_k(self) -> float:
        return self.num_drafted / self.num_sequence_steps

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def switches_per_1000_steps(self) -> float:
        return 1000 * self.num_switches / self.num_steps


class Switches:
    """Counts changes of what a policy decides for the batch: whether it drafts at all, and how deep
    the drafters go whose depth costs time.

    A step or two that differ from those around them are a probe, tried again at once where it
    succeeded, or a look at the baseline, not a change: a level counts once it has lasted
    LASTING_STEPS. K of one sequence, which follows its text where depth costs nothing, is not a
    switch either.
    """

    def __init__(self) -> None:
        self.count = 0
        self._level: int | None = None
        self._candidate: int | None = None
        self._num_steps = 0

    def observe(self, level: int) -> None:
        if level == self._level:
            self._candidate = None
            return
        self._num_steps = self._num_steps + 1 if level == self._candidate else 1
        self._candidate = level
        if self._level is None or self._num_steps >= LASTING_STEPS:
            self.count += self._level is not None
            self._level, self._candidate = level, None


class ClosedLoop:
    """Runs one policy at a concurrency that may be changed between steps.

    requests: endless. drafters: those that each sequence may use, the preferred one first. An
    `Oracle` is shown what no other policy sees.
    """

    def __init__(
        self,
        controller: Controller,
        cost: StepCost,
        requests: Iterator[SimulatedRequest],
        drafters: tuple[str, ...],
        max_k: int,
    ) -> None:
        self.controller = controller
        self.now_s = 0.0
        self._cost = cost
        self._requests = requests
        self._drafters = drafters
        self._rows = Rows(drafters, max_k, LOCAL_DRAFTERS)
        self._switches = Switches()
        if isinstance(controller, Oracle):
            controller.foresee(self._rows, cost)

    @property
    def num_kv_tokens(self) -> int:
        """Prompt and output tokens of all sequences."""
        return self._rows.num_kv_tokens

    def run(self, num_steps: int, concurrency: int, result: LoopResult | None = None) -> LoopResult:
        """`num_steps` steps, added to `result` where one is given."""
        result = LoopResult() if result is None else result
        switches = self._switches.count
        for _ in range(num_steps):
            self._step(concurrency, result)
        result.num_switches += self._switches.count - switches
        return result

    def _step(self, concurrency: int, result: LoopResult) -> None:
        rows = self._rows
        while len(rows) < concurrency:
            rows.add(next(self._requests))
        self._shed(concurrency)
        num_kv_tokens = rows.num_kv_tokens
        state = BatchState(rows.states(), 0, num_kv_tokens, self.now_s)
        drafter_of = self._choose(state)
        planned = self.controller.plan(state)
        num_drafted = np.array(planned, dtype=np.int64)
        asked = asked_of(drafter_of, planned)
        propose_s = self._cost.propose_s(asked)
        num_tokens = len(rows) + int(num_drafted.sum())
        run_s = self._cost.run_s(num_tokens, num_kv_tokens)
        scores = rows.scores()
        outcome = rows.verify(drafter_of, num_drafted)
        results = rows.results(drafter_of, planned, num_drafted, outcome, scores)
        self.now_s += propose_s + run_s
        self.controller.observe(
            StepResult(
                num_tokens=num_tokens,
                num_prefill_tokens=0,
                num_kv_tokens=num_kv_tokens,
                propose_s=propose_s,
                run_s=run_s,
                step_s=propose_s + run_s,
                sequences=results,
                now_s=self.now_s,
            )
        )
        rows.drop(outcome.finished)
        self._count(result, propose_s + run_s, num_drafted, outcome.num_committed)
        result.num_accepted += int(outcome.num_accepted.sum())
        result.num_finished += int(outcome.finished.sum())
        self._switches.observe(_level(asked))

    def _choose(self, state: BatchState) -> list[str | None]:
        if len(self._drafters) > 1:
            options = [self._drafters] * len(state.sequences)
            chosen = self.controller.choose_drafters(state, options)
            for sequence, drafter in zip(state.sequences, chosen, strict=True):
                sequence.drafter = drafter
        return [sequence.drafter for sequence in state.sequences]

    def _shed(self, concurrency: int) -> None:
        """Where concurrency falls, the youngest sequences leave unfinished."""
        rows = self._rows
        if len(rows) > concurrency:
            gone = np.arange(len(rows)) >= concurrency
            for seq_id in rows.drop(gone):
                self.controller.close(seq_id)

    def _count(self, result: LoopResult, step_s: float, drafted: Ints, committed: Ints) -> None:
        result.num_steps += 1
        result.seconds += step_s
        result.num_committed += int(committed.sum())
        result.num_sequence_steps += len(drafted)
        result.num_drafted += int(drafted.sum())
        for k, count in enumerate(np.bincount(drafted).tolist()):
            if count:
                result.steps_by_k[k] = result.steps_by_k.get(k, 0) + count


def _level(asked: dict[str, tuple[int, int]]) -> int:
    """The depth of drafters whose depth costs time; -1 where nothing is drafted."""
    depths = [depth for name, (depth, _) in asked.items() if name not in LOCAL_DRAFTERS]
    return max(depths, default=0) if asked else -1
