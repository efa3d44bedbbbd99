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
        drafters = [s.drafter for s in sequences]
        self.drafters = sorted({name for name in drafters if name is not None})
        index: dict[str | None, int] = {name: place for place, name in enumerate(self.drafters)}
        index[None] = -1
        self.drafter = _ints([index[name] for name in drafters])
        limits = np.minimum(_ints([s.max_k for s in sequences]), max_k)
        limits[self.drafter < 0] = 0
        fixed = [s.fixed_k for s in sequences]
        self.is_fixed = np.array([k is not None for k in fixed], dtype=bool)
        self.max_k = np.where(self.is_fixed, 0, limits)
        self.fixed_ks = np.minimum(_ints([k or 0 for k in fixed]), limits)
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
    asked: dict[str, list[int]] = {}
    for result in results:
        if result.planned_k > 0 and result.drafter is not None:
            asked.setdefault(result.drafter, []).append(result.planned_k)
    return {drafter: (max(ks), sum(ks)) for drafter, ks in asked.items()}


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
