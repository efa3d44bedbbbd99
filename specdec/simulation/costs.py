"""What simulated steps take: seconds of the target and of its drafters.

Knows published and fitted machines as formulas. Controllers learn these times from steps, as they
would elsewhere; they never see the formulas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Asked = Mapping[str, tuple[int, int]]

MS = 1e-3


class StepCost(Protocol):
    """The true times of a simulated machine.

    drafters: those whose time it knows. prefill_token_s: what a prompt token adds to a step.
    num_gpus: of the target.
    """

    @property
    def drafters(self) -> tuple[str, ...]: ...

    @property
    def prefill_token_s(self) -> float: ...

    @property
    def num_gpus(self) -> int: ...

    def run_s(self, num_tokens: float, num_kv_tokens: int) -> float:
        """Seconds of the target's step over `num_tokens` tokens that read `num_kv_tokens`."""
        ...

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """The same for steps of several sizes."""
        ...

    def propose_s(self, asked: Asked) -> float:
        """Seconds that drafting takes: drafter -> (deepest k, draft tokens in all)."""
        ...


@dataclass(frozen=True, slots=True)
class DraftTime:
    """Seconds of a round of drafting: of each draft step, whatever the batch, of the round, and of
    each draft token, such as for the context that it reads."""

    step_s: float = 0.0
    round_s: float = 0.0
    token_s: float = 0.0

    def seconds(self, depth: int, num_tokens: int) -> float:
        return self.round_s + depth * self.step_s + num_tokens * self.token_s


LOOKUP = DraftTime(round_s=0.05 * MS)


class Machine(ABC):
    """A StepCost whose drafters take a time by depth."""

    def __init__(
        self, draft_times: Mapping[str, DraftTime], prefill_token_s: float, num_gpus: int = 1
    ) -> None:
        self._draft_times = dict(draft_times)
        self.prefill_token_s = prefill_token_s
        self.num_gpus = num_gpus

    @property
    def drafters(self) -> tuple[str, ...]:
        return tuple(self._draft_times)

    @abstractmethod
    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of the target's step over so many tokens that read `num_kv_tokens`."""

    def run_s(self, num_tokens: float, num_kv_tokens: int) -> float:
        """Seconds of one step."""
        return float(self.run_many_s(np.array(num_tokens), num_kv_tokens))

    def propose_s(self, asked: Asked) -> float:
        """Drafters work one after the other."""
        return sum(self._draft_times[name].seconds(*amount) for name, amount in asked.items())


class Llama8B(Machine):
    """Llama-3.1-8B on one H100 with an EAGLE head and prompt lookup, as published for vLLM.

    Coefficients of SpecDecode-Bench (arXiv 2601.11580), in ms: 5.886 + 0.02101 tokens + 3.926e-5
    KV tokens for the target, 1.207 for what surrounds it; EAGLE at 0.712 for each draft step of the
    batch (2.135 were fitted at K = 3), lookup at 0.05.
    """

    def __init__(self) -> None:
        super().__init__({"eagle": DraftTime(0.712 * MS), "ngram": LOOKUP}, 0.02101 * MS)

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of steps."""
        around = 3.926e-5 * num_kv_tokens + 1.207
        return np.asarray((5.886 + 0.02101 * num_tokens + around) * MS)


@dataclass(frozen=True, slots=True)
class Roof:
    """Milliseconds of a target's step: sqrt(weights^2 + (token * n)^2) + kv * L + around.

    Bandwidth bounds a step of few tokens and arithmetic one of many. prefill: ms that each prompt
    token adds; one roof over all tokens, prompts included, fits the published speed-ups half as
    well.
    """

    weights: float
    token: float
    kv: float
    around: float
    prefill: float


class Calibrated(Machine):
    """A machine fitted to published speed-ups by one smooth curve."""

    def __init__(self, roof: Roof, draft_times: Mapping[str, DraftTime], num_gpus: int = 1) -> None:
        super().__init__(draft_times, roof.prefill * MS, num_gpus)
        self.roof = roof

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of steps."""
        roof = self.roof
        bound = np.hypot(roof.weights, roof.token * np.asarray(num_tokens))
        return np.asarray((bound + roof.kv * num_kv_tokens + roof.around) * MS)


# Fitted to arXiv 2601.11580, figure 1, with one acceptance length for each curve: mean error 1.2 %
# for the 8B model (32 points) and 2.3 % for the 70B one (32 points).
ROOF_8B = Roof(weights=6.3, token=0.018, kv=3.93e-5, around=1.2, prefill=0.0204)
ROOF_70B_TP4 = Roof(weights=16.0, token=0.065, kv=2.5e-5, around=1.1, prefill=0.0535)


def llama_8b_calibrated() -> Calibrated:
    """Llama-3.1-8B on one H100, fitted with the smooth form; EAGLE takes 1.6 ms for K = 3."""
    return Calibrated(ROOF_8B, {"eagle": DraftTime(1.6 / 3 * MS), "ngram": LOOKUP})


def llama_70b_tp4() -> Calibrated:
    """Llama-3-70B on four H100: EAGLE 1.5 ms, a 1B draft on the same GPUs 3.5 ms for K = 3."""
    times = {
        "eagle": DraftTime(0.5 * MS),
        "draft": DraftTime(3.5 / 3 * MS),
        "ngram": LOOKUP,
    }
    return Calibrated(ROOF_70B_TP4, times, num_gpus=4)
