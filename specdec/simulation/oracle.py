"""Per-step hindsight: the most that any choice of K could gain in one step.

Sees what drafters would get accepted before they draft, which no controller can; it is the ceiling
that policies are held against. Greedy over time: it makes the best of each step, and lets the next
one come as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.simulation.costs import StepCost
from specdec.simulation.requests import Ints
from specdec.simulation.rows import Rows
from specdec.speculation.baselines import Baseline
from specdec.speculation.controller.interface import BatchState


@dataclass(frozen=True, slots=True)
class Choice:
    """The best of one step: [rows] k, [rows] index of the drafter, tokens per second."""

    ks: Ints
    drafter: Ints
    goodput: float


def best_choice(
    useful: Ints,
    deep: SequenceOf[bool],
    cost: StepCost,
    drafters: tuple[str, ...],
    num_kv_tokens: int,
) -> Choice:
    """The ks that maximise (rows + accepted) / seconds, exactly.

    useful: [drafters, rows], how many draft tokens of each drafter would be committed; more than
        that is never worth drafting, and each one up to there commits one token.
    deep: of each drafter, whether its time grows with the deepest k of the batch.

    Every draft token is worth the same, so for given depths only their number matters, and the
    longer proposal of a row is the better one. Exact where drafters take no time by the token.
    """
    num_rows = useful.shape[1]
    tokens = np.arange(num_rows + 1 + int(useful.max(axis=0).sum() if useful.size else 0))
    run_s = cost.run_many_s(tokens[num_rows:], num_kv_tokens)
    best = Choice(
        np.zeros(num_rows, dtype=np.int64),
        np.zeros(num_rows, dtype=np.int64),
        num_rows / float(run_s[0]),
    )
    for limits in _limits(useful, deep):
        offered = np.minimum(useful, limits[:, None])
        drafter = offered.argmax(axis=0)
        ks = offered.max(axis=0)
        total = int(ks.sum())
        if not total:
            continue
        depths = {
            name: (int(ks[drafter == index].max()), int(ks[drafter == index].sum()))
            for index, name in enumerate(drafters)
            if (ks[drafter == index] > 0).any()
        }
        goodput = tokens[num_rows : num_rows + total + 1] / (
            run_s[: total + 1] + cost.propose_s(depths)
        )
        most = int(goodput[1:].argmax()) + 1
        if goodput[most] > best.goodput:
            best = Choice(_trimmed(ks, total - most), drafter, float(goodput[most]))
    return best


def _limits(useful: Ints, deep: SequenceOf[bool]) -> list[Ints]:
    """Depths worth trying for the drafters: all of them where depth costs, else none or the most;
    one at a time for drafters whose depth costs, since a row uses one of them only."""
    most = useful.max(axis=1) if useful.size else np.zeros(len(deep), dtype=np.int64)
    ranges = [
        np.unique(np.append(row, 0)) if is_deep else np.unique([0, top])
        for row, is_deep, top in zip(useful, deep, most, strict=True)
    ]
    return list(np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(deep)))


def _trimmed(ks: Ints, num_surplus: int) -> Ints:
    """Without `num_surplus` of its tokens, taken from the last rows."""
    kept = int(ks.sum()) - num_surplus
    before = np.concatenate(([0], ks.cumsum()[:-1]))
    trimmed: Ints = np.clip(kept - before, 0, ks)
    return trimmed


class Oracle(Baseline):
    """A `Controller` that is shown the rows of its simulation."""

    name = "oracle"

    def __init__(
        self, max_k: int, max_wait_s: float, drafters: tuple[str, ...], local: tuple[str, ...]
    ) -> None:
        super().__init__(max_k, max_wait_s)
        self._drafters = drafters
        self._deep = [name not in local for name in drafters]
        self._rows: Rows | None = None
        self._cost: StepCost | None = None
        self._choice: Choice | None = None

    def foresee(self, rows: Rows, cost: StepCost) -> None:
        """Where it looks before every step."""
        self._rows, self._cost = rows, cost

    def choose_drafters(
        self, state: BatchState, options: SequenceOf[tuple[str, ...]]
    ) -> list[str | None]:
        """The drafter whose proposal is the most useful in the best choice of this step."""
        self._choice = self._best(state)
        return [
            self._drafters[index] if names else None
            for index, names in zip(self._choice.drafter.tolist(), options, strict=True)
        ]

    def _wanted(self, state: BatchState) -> SequenceOf[int]:
        choice = self._choice or self._best(state)
        self._choice = None
        return [int(k) for k in choice.ks.tolist()]

    def _best(self, state: BatchState) -> Choice:
        assert self._rows is not None, "foresee() comes first"
        assert self._cost is not None
        useful = self._rows.useful(self._max_k)
        return best_choice(useful, self._deep, self._cost, self._drafters, state.num_kv_tokens)
