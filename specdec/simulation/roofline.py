"""Step times of any target and draft from numbers of their hardware.

A step reads the weights once and the KV cache once, and computes two operations for each weight and
token. Knows bytes, operations and their limits; efficiencies are what fitted machines reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specdec.errors import ConfigError
from specdec.simulation.costs import LOOKUP, MS, Asked, Floats, Ints, Machine

AROUND_MS = 1.1
# Launching a small model's kernels: a 1B draft takes 1.2 ms a step on one H100, and on four.
DRAFT_AROUND_S = 0.3e-3
ALL_REDUCES_PER_LAYER = 2
MIN_EFFICIENCY = 0.001


@dataclass(frozen=True, slots=True)
class Gpu:
    """Of one device: dense 16-bit operations and bytes per second, bytes of memory. all_reduce_s:
    what a reduction among the GPUs of a replica takes for few tokens."""

    operations_per_s: float
    bytes_per_s: float
    memory_bytes: float
    all_reduce_s: float = 13.5e-6

    def __post_init__(self) -> None:
        _check_positive(self, "operations_per_s", "bytes_per_s", "memory_bytes")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Of one model: parameters that every token passes, bytes of all weights, KV bytes per token,
    layers. A model with experts has fewer of the first than its weights hold."""

    num_parameters: float
    weights_bytes: float
    kv_bytes_per_token: float
    num_layers: int

    def __post_init__(self) -> None:
        _check_positive(self, "num_parameters", "weights_bytes", "kv_bytes_per_token", "num_layers")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Parts of the peak that real kernels reach.

    Fits to arXiv 2601.11580: an 8B model on one H100 and a 70B one on four both read their weights
    at 0.76 of the peak, with all-reduces apart; operations reach 0.9 and 0.55; KV caches are read
    at the peak.
    """

    weights: float = 0.76
    operations: float = 0.7
    kv: float = 1.0

    def __post_init__(self) -> None:
        for name in ("weights", "operations", "kv"):
            value = getattr(self, name)
            if not MIN_EFFICIENCY <= value <= 1:
                raise ConfigError(
                    f"{name}: an efficiency is from {MIN_EFFICIENCY} to 1, not {value}", field=name
                )


@dataclass(frozen=True, slots=True)
class Placed:
    """A model on `tensor_parallel_size` GPUs."""

    model: ModelSize
    gpu: Gpu
    tensor_parallel_size: int = 1
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ConfigError(
                f"tensor_parallel_size must be at least 1, not {self.tensor_parallel_size}",
                field="tensor_parallel_size",
            )

    @property
    def weights_s(self) -> float:
        """Reading the weights once."""
        rate = self.gpu.bytes_per_s * self.efficiency.weights * self.tensor_parallel_size
        return self.model.weights_bytes / rate

    @property
    def token_s(self) -> float:
        """Operations of one token."""
        rate = self.gpu.operations_per_s * self.efficiency.operations * self.tensor_parallel_size
        return 2 * self.model.num_parameters / rate

    @property
    def kv_token_s(self) -> float:
        """Reading one token's KV cache."""
        rate = self.gpu.bytes_per_s * self.efficiency.kv * self.tensor_parallel_size
        return self.model.kv_bytes_per_token / rate

    @property
    def reductions_s(self) -> float:
        """All-reduces of one step; none on one GPU."""
        if self.tensor_parallel_size == 1:
            return 0.0
        return ALL_REDUCES_PER_LAYER * self.model.num_layers * self.gpu.all_reduce_s

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV cache fits beside the weights, with a tenth of the memory kept free.
        Raises ConfigError (field `tensor_parallel_size`) where the weights do not fit."""
        memory = 0.9 * self.gpu.memory_bytes * self.tensor_parallel_size
        left = memory - self.model.weights_bytes
        if left <= 0:
            raise ConfigError(
                f"tensor_parallel_size: weights of {self.model.weights_bytes:.3g} bytes do not fit "
                f"into {self.tensor_parallel_size} GPUs of {self.gpu.memory_bytes:.3g} bytes",
                field="tensor_parallel_size",
            )
        return int(left / self.model.kv_bytes_per_token)

    def step_s(self, num_tokens: Ints | float, num_kv_tokens: float) -> Floats:
        """hypot(weights, operations) + KV + reductions: the smooth roofline."""
        bound = np.hypot(self.weights_s, self.token_s * np.asarray(num_tokens, dtype=np.float64))
        return np.asarray(bound + self.kv_token_s * num_kv_tokens + self.reductions_s)


class Roofline(Machine):
    """A target with draft models, each on hardware of its own or on the target's.

    draft_context: mean KV tokens of a sequence, which every draft step reads. Lookup is always
    there.
    """

    def __init__(
        self,
        target: Placed,
        drafts: Mapping[str, Placed],
        around_s: float = AROUND_MS * MS,
        draft_context: float = 500.0,
    ) -> None:
        super().__init__({"ngram": LOOKUP}, target.token_s, target.tensor_parallel_size)
        self.target = target
        self.drafts = dict(drafts)
        self._around_s = around_s
        self._draft_context = draft_context

    @property
    def drafters(self) -> tuple[str, ...]:
        return (*self.drafts, "ngram")

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of steps."""
        return np.asarray(self.target.step_s(num_tokens, num_kv_tokens) + self._around_s)

    def propose_s(self, asked: Asked) -> float:
        """As many draft steps as the deepest k, over as many sequences as draft on average."""
        total = 0.0
        for name, (depth, tokens) in asked.items():
            draft = self.drafts.get(name)
            if draft is None:
                total += LOOKUP.round_s
            else:
                sequences = tokens / max(depth, 1)
                step = draft.step_s(sequences, sequences * self._draft_context)
                total += depth * (float(step) + DRAFT_AROUND_S)
        return total


def _check_positive(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be finite and above 0, not {value}", field=name)
