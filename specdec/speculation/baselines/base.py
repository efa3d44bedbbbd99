"""What all baseline policies share: limits of each sequence, the wait, and forgetting.

A policy says what K it wants; here that becomes what a sequence may get. No policy that chooses
among drafters is a baseline: the preferred one proposes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf
from typing import Generic, TypeVar

from specdec.sequence import Explanation
from specdec.speculation.controller.interface import (
    BatchState,
    SequenceResult,
    SequenceState,
    StepResult,
)

State = TypeVar("State")


class Baseline(ABC):
    """A `Controller` without a model of its own time.

    max_k: the operator's limit on K. max_wait_s: how long every step may wait for proposals;
    the published rules leave that open.
    """

    name: str

    def __init__(self, max_k: int, max_wait_s: float) -> None:
        self._max_k = max_k
        self._max_wait_s = max_wait_s
        self._ks: list[int] = []
        self._fixed: set[int] = set()
        self._num_steps = 0

    @abstractmethod
    def _wanted(self, state: BatchState) -> SequenceOf[int]:
        """The K that the rule gives each of `state.sequences`, whatever their limits."""

    def _details(self) -> dict[str, float | str]:
        """What the policy adds to `snapshot`."""
        return {}

    def choose_drafters(
        self, state: BatchState, options: SequenceOf[tuple[str, ...]]
    ) -> list[str | None]:
        """The first in order of preference."""
        return [names[0] if names else None for names in options]

    def plan(self, state: BatchState) -> list[int]:
        """k for each of `state.sequences`, in order, 0 <= k <= max_k."""
        wanted = self._wanted(state)
        self._fixed = {s.seq_id for s in state.sequences if s.fixed_k is not None}
        self._ks = [
            self._allowed(sequence, k) for sequence, k in zip(state.sequences, wanted, strict=True)
        ]
        return list(self._ks)

    def _allowed(self, sequence: SequenceState, wanted: int) -> int:
        if sequence.drafter is None:
            return 0
        k = wanted if sequence.fixed_k is None else sequence.fixed_k
        return min(k, sequence.max_k, self._max_k)

    def observe(self, result: StepResult) -> None:
        """A step was executed; what its finished sequences left is forgotten."""
        self._num_steps += 1
        for sequence in result.sequences:
            if sequence.finished:
                self.close(sequence.seq_id)

    def _asked(self, result: StepResult) -> list[SequenceResult]:
        """The sequences whose K the policy set, above 0."""
        return [r for r in result.sequences if r.planned_k > 0 and r.seq_id not in self._fixed]

    def explain(self, seq_id: int, last_steps: int | None = None) -> tuple[Explanation, ...]:
        """Nothing: a rule that prices nothing has no prices to tell."""
        return ()

    def close(self, seq_id: int) -> None:
        """Forget a sequence, however it ended."""
        self._fixed.discard(seq_id)

    def wait_s(self) -> float:
        """Every step may wait equally long."""
        return self._max_wait_s

    def snapshot(self) -> dict[str, float | str]:
        """State for metrics."""
        depth = max(self._ks, default=0)
        values: dict[str, float | str] = {
            "policy": self.name,
            "phase": "on" if depth else "off",
            "depth": float(depth),
            "mean_k": sum(self._ks) / len(self._ks) if self._ks else 0.0,
            "wait_s": self._max_wait_s,
            "steps": float(self._num_steps),
        }
        return values | self._details()


class BatchBaseline(Baseline):
    """A policy with one K for the whole batch."""

    @abstractmethod
    def _k(self, state: BatchState) -> int:
        """The K of this step."""

    def _wanted(self, state: BatchState) -> SequenceOf[int]:
        return [self._k(state)] * len(state.sequences)


class RequestBaseline(Baseline, Generic[State]):
    """A policy that follows every request alone. It knows the requests of `plan` until they end."""

    def __init__(self, max_k: int, max_wait_s: float) -> None:
        super().__init__(max_k, max_wait_s)
        self._requests: dict[int, State] = {}

    @abstractmethod
    def _start(self) -> State:
        """The state of a new request."""

    @abstractmethod
    def _k(self, request: State) -> int:
        """The K of a request in this step."""

    @abstractmethod
    def _update(self, request: State, num_drafted: int, num_accepted: int) -> None:
        """A proposal of at least one token was verified."""

    def _wanted(self, state: BatchState) -> SequenceOf[int]:
        return [self._k(self._request(s.seq_id)) for s in state.sequences]

    def _request(self, seq_id: int) -> State:
        request = self._requests.get(seq_id)
        if request is None:
            request = self._requests[seq_id] = self._start()
        return request

    def observe(self, result: StepResult) -> None:
        """Learn from the proposals that were verified."""
        for sequence in self._asked(result):
            request = self._requests.get(sequence.seq_id)
            if request is not None and sequence.num_draft_tokens > 0:
                self._update(request, sequence.num_draft_tokens, sequence.num_accepted_tokens)
        super().observe(result)

    def close(self, seq_id: int) -> None:
        """Forget a request, however it ended."""
        super().close(seq_id)
        self._requests.pop(seq_id, None)

    def _details(self) -> dict[str, float | str]:
        return {"requests": float(len(self._requests))}
