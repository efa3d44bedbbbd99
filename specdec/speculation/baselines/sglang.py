"""K from candidates by batch size, moved by an average of accepted tokens, as SGLang's default.

Knows the batch size and how many draft tokens were accepted; nothing of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.speculation.baselines.base import BatchBaseline
from specdec.speculation.controller.interface import BatchState, StepResult

START_K = 3
EMA_WEIGHT = 0.2
DECIDE_EVERY = 5
WARM_UP_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Tier:
    """The candidates from one batch size on. `down` and `up` shift the two thresholds."""

    candidates: tuple[int, ...]
    down: float = 0.0
    up: float = 0.0


# SGLang's default of `--speculative-adaptive`: the smallest batch size of each tier.
TIERS = {
    1: Tier((1, 3, 5, 7), down=-0.25),
    8: Tier((0, 1, 3)),
    32: Tier((0, 1)),
    64: Tier((0,)),
}


class Slot:
    """K of one tier, moved between its candidates."""

    def __init__(self, tier: Tier) -> None:
        candidates = tier.candidates
        self._tier = tier
        self.k = START_K if START_K in candidates else candidates[len(candidates) // 2]
        # Neutral: neither threshold is crossed from here.
        self.average = float(self.k - 1)
        self._num_batches = 0

    def observe(self, mean_accepted: float | None) -> None:
        """One batch of this tier; None where it drafted nothing."""
        if mean_accepted is not None and self.k > 0:
            self.average += EMA_WEIGHT * (mean_accepted - self.average)
        self._num_batches += 1
        judged = self._num_batches - WARM_UP_BATCHES
        if judged > 0 and judged % DECIDE_EVERY == 0:
            self._decide()

    def _decide(self) -> None:
        candidates = self._tier.candidates
        index = candidates.index(self.k)
        if self.k == 0:
            # Nothing was learned at 0: the next candidate is tried whatever the average says.
            self.k = candidates[min(1, len(candidates) - 1)]
            self.average = max(self.average, 0.0)
            return
        lower = self._lower(index)
        self.k = candidates[lower if lower < index else self._higher(index)]

    def _lower(self, index: int) -> int:
        candidates = self._tier.candidates
        while index > 0 and self.average <= _drop(candidates[index - 1]) + self._tier.down:
            index -= 1
        return index

    def _higher(self, index: int) -> int:
        candidates = self._tier.candidates
        while index < len(candidates) - 1:
            if self.average <= candidates[index] - 0.5 + self._tier.up:
                break
            index += 1
        return index


def _drop(previous: int) -> float:
    """The average at or below which the candidate `previous` is enough."""
    return previous - 0.5 if previous > 0 else 0.5


class EmaPolicy(BatchBaseline):
    """SGLang's `--speculative-adaptive` (strategy `ema`) with its built-in configuration.

    One K for the batch. Batch sizes from 1 / 8 / 32 / 64 have the candidates {1, 3, 5, 7} /
    {0, 1, 3} / {0, 1} / {0}, each tier with a state of its own. While K > 0, the average becomes
    0.8 x itself + 0.2 x accepted draft tokens per sequence. Every 5 batches, after 10 of warm-up,
    K falls to the candidate below while the average is at most that candidate - 0.5 (0.5 where it
    is 0), shifted by -0.25 in the first tier; else it rises to the next while the average exceeds
    K - 0.5. From 0 the smallest candidate above it is always tried at the next decision.

    A tier starts at K = 3, the `--speculative-num-steps` of SGLang's example, where that is a
    candidate, else in the middle. SGLang pads the batch to a captured graph's size first; here it
    is taken as it is.
    """

    name = "sglang"

    def __init__(
        self, max_k: int, max_wait_s: float, tiers: Mapping[int, Tier] | None = None
    ) -> None:
        super().__init__(max_k, max_wait_s)
        tiers = TIERS if tiers is None else tiers
        self._slots = {batch: Slot(tiers[batch]) for batch in sorted(tiers, reverse=True)}
        self._slot = self._slots[min(self._slots)]

    def _k(self, state: BatchState) -> int:
        batch = len(state.sequences)
        fitting = (slot for first, slot in self._slots.items() if batch >= first)
        self._slot = next(fitting, self._slots[min(self._slots)])
        return self._slot.k

    def observe(self, result: StepResult) -> None:
        """Learn from a batch, in the tier that it was planned in."""
        if result.sequences:
            accepted = [r.num_accepted_tokens for r in self._asked(result)]
            self._slot.observe(sum(accepted) / len(accepted) if accepted else None)
        super().observe(result)

    def _details(self) -> dict[str, float | str]:
        return {"average_accepted": self._slot.average}
