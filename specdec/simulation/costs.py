"""What simulated steps take: seconds of the target and of its drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StepCost(Protocol):
    """The true times of a simulated machine; controllers learn them as they would elsewhere."""

    def run_s(self, num_tokens: int, num_kv_tokens: int) -> float:
        """Seconds of the target's step over `num_tokens` tokens that read `num_kv_tokens`."""
        ...

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """The same for steps of several sizes."""
        ...

    def propose_s(self, asked: Mapping[str, tuple[int, int]]) -> float:
        """Seconds that drafting takes: drafter -> (deepest k, draft tokens in all)."""
        ...


class Llama8B:
    """Llama-3.1-8B on one H100 with an EAGLE head and prompt lookup, as published for vLLM.

    Coefficients of SpecDecode-Bench (arXiv 2601.11580), in ms: 5.886 + 0.02101 tokens + 3.926e-5
    KV tokens for the target, 1.207 for what surrounds it; EAGLE at 0.712 for each draft step of the
    batch (2.135 were fitted at K = 3), lookup at 0.05.
    """

    def run_s(self, num_tokens: int, num_kv_tokens: int) -> float:
        return (5.886 + 0.02101 * num_tokens + 3.926e-5 * num_kv_tokens + 1.207) / 1000

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        return (5.886 + 0.02101 * num_tokens + 3.926e-5 * num_kv_tokens + 1.207) / 1000

    def propose_s(self, asked: Mapping[str, tuple[int, int]]) -> float:
        depth, _ = asked.get("eagle", (0, 0))
        return (0.712 * depth + (0.05 if "ngram" in asked else 0.0)) / 1000
