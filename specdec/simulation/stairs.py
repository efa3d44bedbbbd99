"""Machines whose step time is a staircase, as kernels that work in tiles have it.

The published profile of microsoft/vidur (MIT licence) on H100: all matrix products, norms,
activations and rotary embeddings of a step summed over the layers. Attention and all-reduces are
not in it and are added by formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np

from specdec.simulation.costs import LOOKUP, MS, DraftTime, Floats, Ints, Machine

SIZES = (1, 16, 32, 64, 128, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096)
# fmt: off
LLAMA2_70B_TP4_MS = (
    14.5, 14.7, 15.5, 15.4, 16.2, 18.6, 19.5, 25.6, 29.4, 30.6, 47.8, 63.2, 113.0, 227.8,
)
LLAMA2_70B_TP8_MS = (
    8.4, 8.7, 9.4, 9.1, 10.2, 13.4, 11.8, 17.4, 17.1, 18.2, 31.4, 33.8, 66.1, 126.6,
)
LLAMA2_7B_MS = (
    5.6, 5.8, 5.9, 5.9, 6.4, 7.5, 9.3, 9.9, 11.2, 12.1, 19.0, 21.3, 40.8, 84.5,
)
# fmt: on
ALL_REDUCE_MS = 0.0135  # fused, measured for SwiftSpec at 12 to 15 us; two in each layer
AROUND_MS = 1.1


class Stairs(Machine):
    """A step takes what the next larger measured one took; beyond the last, as its last slope."""

    def __init__(
        self,
        sizes: SequenceOf[int],
        step_ms: SequenceOf[float],
        kv_ms: float,
        around_ms: float,
        draft_times: Mapping[str, DraftTime],
        num_gpus: int = 1,
    ) -> None:
        self._slope = (step_ms[-1] - step_ms[-2]) / (sizes[-1] - sizes[-2])
        super().__init__(draft_times, self._slope * MS, num_gpus)
        self._sizes = np.array(sizes)
        self._step_ms = np.array(step_ms)
        self._kv_ms, self._around_ms = kv_ms, around_ms

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of steps."""
        num_tokens = np.asarray(num_tokens)
        stair = np.searchsorted(self._sizes, num_tokens).clip(max=len(self._sizes) - 1)
        beyond = np.maximum(num_tokens - self._sizes[-1], 0) * self._slope
        around = self._kv_ms * num_kv_tokens + self._around_ms
        return np.asarray((self._step_ms[stair] + beyond + around) * MS)


def llama_70b_tp4_stairs() -> Stairs:
    """Llama-2-70B on four H100; drafters as in the calibrated machine."""
    times = {"eagle": DraftTime(0.5 * MS), "draft": DraftTime(3.5 / 3 * MS), "ngram": LOOKUP}
    around = 160 * ALL_REDUCE_MS + AROUND_MS
    return Stairs(SIZES, LLAMA2_70B_TP4_MS, 2.5e-5, around, times, num_gpus=4)


def llama_70b_tp8_stairs() -> Stairs:
    """Llama-2-70B on eight H100."""
    times = {"eagle": DraftTime(0.5 * MS), "draft": DraftTime(3.5 / 3 * MS), "ngram": LOOKUP}
    around = 160 * ALL_REDUCE_MS + AROUND_MS
    return Stairs(SIZES, LLAMA2_70B_TP8_MS, 1.25e-5, around, times, num_gpus=8)


def llama_7b_stairs() -> Stairs:
    """Llama-2-7B on one H100. Its KV cache has a head for each query head: four times the bytes."""
    times = {"eagle": DraftTime(1.6 / 3 * MS), "ngram": LOOKUP}
    return Stairs(SIZES, LLAMA2_7B_MS, 4 * 3.93e-5, AROUND_MS, times)
