"""The controller of warm-up requests: drafts a little in every step, and remembers times only.

It exists so that invented prompts teach the real controller nothing about acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from specdec.sequence import Explanation
from specdec.speculation.controller import BatchState, DraftPoint, StepResult

K = 2


class Rehearsal:
    """`Controller` that plans K for every sequence, within its limits.

    max_wait_s: how long each step may wait for proposals.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._num_steps = 0
        self._rounds: dict[str, list[DraftPoint]] = {}

    @property
    def drafts(self) -> dict[str, tuple[DraftPoint, ...]]:
        """The least that each drafter's rounds of a shape took. The first of all ran cold, and
        tells nothing."""
        return {name: _least(rounds[1:]) for name, rounds in self._rounds.items() if rounds[1:]}

    def choose_drafters(
        self, state: BatchState, options: SequenceOf[tuple[str, ...]]
    ) -> list[str | None]:
        """Each in turn, and in one step one for all, so that it is known who took the time."""
        return [names[self._num_steps % len(names)] if names else None for names in options]

    def plan(self, state: BatchState) -> list[int]:
        return [
            0 if s.drafter is None else min(K, s.max_k) if s.fixed_k is None else s.fixed_k
            for s in state.sequences
        ]

    def observe(self, result: StepResult) -> None:
        """Keep the time of a round that was answered: what is declined takes no time."""
        self._num_steps += 1
        asked = [r for r in result.sequences if r.drafter is not None and r.planned_k > 0]
        names = {r.drafter for r in asked if r.drafter is not None}
        if len(names) != 1 or all(r.num_draft_tokens < r.planned_k for r in asked):
            return
        depth = max(r.planned_k for r in asked)
        point = DraftPoint(len(asked), depth, max(result.propose_s, 1e-9))
        self._rounds.setdefault(names.pop(), []).append(point)

    def close(self, seq_id: int) -> None:
        """Nothing is kept of a sequence."""

    def wait_s(self) -> float:
        return self._max_wait_s

    def explain(self, seq_id: int, last_steps: int | None = None) -> tuple[Explanation, ...]:
        return ()

    def snapshot(self) -> dict[str, float | str]:
        return {"phase": "warming up"}


def _least(rounds: SequenceOf[DraftPoint]) -> tuple[DraftPoint, ...]:
    shapes: dict[tuple[int, int], DraftPoint] = {}
    for point in sorted(rounds, key=lambda point: point.seconds):
        shapes.setdefault((point.num_sequences, point.depth), point)
    return tuple(shapes.values())
