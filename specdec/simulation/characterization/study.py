"""What is characterised: sampling cells, the models, and which texts are judged at which cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InvalidRequestError
from specdec.model.executor import Executor
from specdec.params import SamplingParams
from specdec.sampling.processors import filtered_logits


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One setting of the sampler, the same for target and draft."""

    temperature: float
    top_p: float

    def scores(self, logits: Tensor) -> Tensor:
        """Log-weights of this cell's law, float64 [V], from logits [V]; -inf outside its support.

        At temperature 0 all weight is on the first of the largest logits.
        """
        if self.temperature == 0:
            scores = torch.full(logits.shape, -math.inf, dtype=torch.float64, device=logits.device)
            scores[logits.argmax()] = 0.0
            return scores
        params = SamplingParams(temperature=self.temperature, top_p=self.top_p)
        return filtered_logits(logits[None], params)[0]


def grid(temperatures: Sequence[float], top_ps: Sequence[float]) -> tuple[Cell, ...]:
    """Every temperature with every top-p, in order; temperature 0, where top-p changes nothing,
    once. Raises InvalidRequestError naming the value that no request may have."""
    for temperature in temperatures:
        SamplingParams(temperature=temperature).validate(vocab_size=1)
    for top_p in top_ps:
        SamplingParams(top_p=top_p).validate(vocab_size=1)
    if not temperatures or not top_ps:
        raise InvalidRequestError("temperatures and top_ps: name at least one of each")
    cells = [Cell(t, top_p if t > 0 else 1.0) for t in temperatures for top_p in top_ps]
    return tuple(sorted(set(cells)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is measured. `context`: None, and each cell is judged on texts sampled at that cell;
    or a cell, and all cells are judged on the same texts, sampled there."""

    cells: tuple[Cell, ...]
    max_tokens: int
    k: int
    seed: int
    max_law_entries: int
    context: Cell | None = None

    @property
    def texts(self) -> list[tuple[Cell, tuple[Cell, ...]]]:
        """For each text of a prompt: where it is sampled, and where it is judged."""
        if self.context is None:
            return [(cell, (cell,)) for cell in self.cells]
        return [(self.context, self.cells)]


@dataclass(frozen=True, slots=True)
class Models:
    """A target and the drafters set against it. All executors share one pool shape
    (`reader.pool_for`). `ngram`: shortest and longest n-gram of prompt lookup."""

    target: Executor
    drafts: Mapping[str, Executor]
    eos_token_ids: frozenset[int]
    ngram: tuple[int, int] | None = None
