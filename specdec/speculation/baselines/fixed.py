"""The same K for every sequence in every step; 0 is no speculation."""

from __future__ import annotations

from specdec.speculation.baselines.base import BatchBaseline
from specdec.speculation.controller.interface import BatchState


class FixedPolicy(BatchBaseline):
    """`num_speculative_tokens` as it is set once in every engine; `off` is fixed:0."""

    def __init__(self, k: int, max_k: int, max_wait_s: float) -> None:
        super().__init__(max_k, max_wait_s)
        self.name = f"fixed:{k}" if k else "off"
        self._fixed_k = k

    def _k(self, state: BatchState) -> int:
        return self._fixed_k
