"""A full batch in the long run, in closed form: what a step takes and yields on average.

Sequences that end are replaced, and their prompts are computed in the steps of the others. All
sequences are alike here; the simulation of the same cells has them differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec.simulation.costs import Calibrated
from specdec.simulation.reproduction.machines import context_tokens
from specdec.simulation.workloads import WORKLOADS

MAX_TOKENS = 64.0
BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a batch drafts: `k` tokens at a time, in the part `share` of all rounds. verified: draft
    tokens in the target's step where that is another number, as in a tree."""

    drafter: str
    k: int
    share: float = 1.0
    verified: int | None = None

    @property
    def tokens_per_round(self) -> float:
        return self.share * (self.k if self.verified is None else self.verified)


NONE = Drafting("", 0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of an average step: drafting, the target (prompts included), and around both."""

    draft_s: float
    target_s: float
    around_s: float

    @property
    def total_s(self) -> float:
        return self.draft_s + self.target_s + self.around_s


def step_time(
    machine: Calibrated, dataset: str, batch: int, drafting: Drafting, tokens: float
) -> StepTime:
    """Of a batch whose sequences get `tokens` each per step."""
    law = WORKLOADS[dataset]
    around_s = machine.roof.around / 1000
    num_tokens = batch * (1 + drafting.tokens_per_round)
    target_s = machine.run_s(num_tokens, round(batch * context_tokens(dataset))) - around_s
    # Each sequence ends after output_len / tokens steps, and the next one brings its prompt.
    prompt_tokens = batch * tokens / law.output_len * law.prompt_len
    draft_s = 0.0
    if drafting.k:
        amount = (drafting.k, round(batch * drafting.share * drafting.k))
        draft_s = machine.propose_s({drafting.drafter: amount})
    return StepTime(draft_s, target_s + prompt_tokens * machine.prefill_token_s, around_s)


def speedup(
    machine: Calibrated, dataset: str, batch: int, drafting: Drafting, tokens: float
) -> float:
    """Factor over no speculation, for a batch that gets `tokens` per round and sequence."""
    off = step_time(machine, dataset, batch, NONE, 1.0).total_s
    return tokens * off / step_time(machine, dataset, batch, drafting, tokens).total_s


def fit_tokens(
    machine: Calibrated,
    dataset: str,
    drafting: Drafting,
    measured: dict[int, float],
) -> float:
    """Tokens per round with the least squared relative error of the speed-ups at the batch sizes of
    `measured`, at least 1."""

    def slope(tokens: float) -> float:
        """Of the squared error, by differences."""
        step = 1e-5
        return error(tokens + step) - error(tokens - step)

    def error(tokens: float) -> float:
        return sum(
            (speedup(machine, dataset, batch, drafting, tokens) / value - 1) ** 2
            for batch, value in measured.items()
        )

    low, high = 1.0, MAX_TOKENS
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
