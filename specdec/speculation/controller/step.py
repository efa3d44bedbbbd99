"""The step being planned, and the step that was executed, as arrays for the controller."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.interface import BatchState, SequenceResult
from specdec.speculation.controller.policy import StepCosts

Ints = NDArray[np.int64]


class PlannedStep:
    """A BatchState as arrays. Rows with a fixed K are not the controller's to change: max_k 0."""

    def __init__(self, state: BatchState, max_k: int) -> None:
        sequences = self.sequences = state.sequences
        self.seq_ids = [s.seq_id for s in sequences]
        self.drafters = sorted({s.drafter for s in sequences if s.drafter is not None})
        index = {name: position for position, name in enumerate(self.drafters)}
        self.drafter: Ints = np.array(
            [-1 if s.drafter is None else index[s.drafter] for s in sequences], dtype=np.int64
        )
        limits = [min(s.max_k, max_k) if s.drafter is not None else 0 for s in sequences]
        pairs = list(zip(sequences, limits, strict=True))
        self.max_k: Ints = np.array(
            [limit if s.fixed_k is None else 0 for s, limit in pairs], dtype=np.int64
        )
        self.is_fixed = np.array([s.fixed_k is not None for s in sequences], dtype=bool)
        self.fixed_ks: Ints = np.array(
            [0 if s.fixed_k is None else min(s.fixed_k, limit) for s, limit in pairs],
            dtype=np.int64,
        )
        self.num_decodes = len(sequences)
        self.num_tokens = state.num_prefill_tokens + self.num_decodes
        self.num_kv_tokens = state.num_kv_tokens

    def asked(self, ks: Ints) -> dict[str, tuple[int, int]]:
        """drafter -> (deepest k, draft tokens), for those that draft anything."""
        asked = {}
        for index, drafter in enumerate(self.drafters):
            mine = ks[self.drafter == index]
            if mine.any():
                asked[drafter] = (int(mine.max()), int(mine.sum()))
        return asked

    def seconds(self, ks: Ints, costs: StepCosts) -> float:
        """Predicted time of the step with these ks."""
        total = float(costs.run_s(ks.sum()))
        for index, cost in enumerate(costs.propose):
            mine = ks[self.drafter == index]
            if mine.any():
                total += float(cost.by_depth[mine.max()] + cost.per_token_s * mine.sum())
        return total


def asked_of(results: SequenceOf[SequenceResult]) -> dict[str, tuple[int, int]]:
    """drafter -> (deepest k, draft tokens), as planned in a step that has been executed."""
    asked: dict[str, tuple[int, int]] = {}
    for result in results:
        if result.drafter is not None and result.planned_k > 0:
            depth, tokens = asked.get(result.drafter, (0, 0))
            asked[result.drafter] = (max(depth, result.planned_k), tokens + result.planned_k)
    return asked
