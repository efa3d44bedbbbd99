"""Reading one prompt's texts, and what every drafter was worth at every position of each.

The target samples each text with the request's own noise, so a text is the one that the engine
answers to the same prompt, parameters and seed. Laws are computed by the sampler that serves
requests. It aggregates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.coupled import gumbel_argmax
from specdec.sequence import Sequence as TokenSequence
from specdec.sequence import Verification
from specdec.simulation.characterization.overlap import (
    RULES,
    Overlap,
    Probs,
    coupled_bound,
    entropy,
    overlap,
)
from specdec.simulation.characterization.reader import Reader
from specdec.simulation.characterization.rounds import consecutive, tokens_and_rounds
from specdec.simulation.characterization.study import Cell, Models, Study
from specdec.speculation.proposers.ngram import NgramProposer

NGRAM = "ngram"
MASK64 = 2**64 - 1


class Position(NamedTuple):
    """One position: the target's law there, and the overlap of the drafter's first token with it
    (None where the drafter had nothing to propose)."""

    entropy: float
    support: int
    overlap: Overlap | None


@dataclass(slots=True)
class Trace:
    """One drafter along one text, judged at one cell.

    `rounds`: expected (tokens, rounds) of fixed-K speculation for each of RULES; None where the
    text was sampled elsewhere than at `cell`.
    """

    drafter: str
    category: str
    cell: Cell
    positions: list[Position] = field(default_factory=list)
    rounds: list[tuple[float, float]] | None = None


def read_prompt(
    models: Models, study: Study, category: str, prompt_ids: list[int], seed: int
) -> list[Trace]:
    """Traces of all drafters over all texts of one prompt. `seed` is the request's seed."""
    reader = Reader([models.target, *models.drafts.values()], prompt_ids, study.max_tokens)
    texts = [
        _Text(number, models, study, category, prompt_ids, seed & MASK64)
        for number in range(len(study.texts))
    ]
    logits = [row.expand(len(texts), -1) for row in reader.read_prompt()]
    live = texts
    while True:
        for row, text in enumerate(live):
            text.observe([of_model[row] for of_model in logits])
        live = [text for text in live if not text.has_ended]
        if not live:
            return [trace for text in texts for trace in text.traces()]
        logits = reader.read({text.number: text.sequence.token_ids[-1] for text in live})


class _Text:
    """One continuation: sampled token by token, every drafter judged before each token."""

    def __init__(
        self,
        number: int,
        models: Models,
        study: Study,
        category: str,
        prompt_ids: list[int],
        seed: int,
    ) -> None:
        self.number = number
        self._study = study
        self._sampled_at, judged_at = study.texts[number]
        self.sequence = _sequence(number, prompt_ids, seed, models.eos_token_ids, study.max_tokens)
        names = [*models.drafts, *([NGRAM] if models.ngram else [])]
        self._traces = {
            cell: {name: Trace(name, category, cell) for name in names} for cell in judged_at
        }
        self._drafts = list(models.drafts)
        self._lookup = _Lookup(self.sequence, models.ngram, study.k) if models.ngram else None

    @property
    def has_ended(self) -> bool:
        ended = self.sequence.token_ids[-1] in self.sequence.eos_token_ids
        return ended or self.sequence.num_free_output_tokens == 0

    def observe(self, logits: Sequence[Tensor]) -> None:
        """Judge all drafters by the models' logits [V] at this position, the target's first, and
        append the token that the target samples."""
        target_logits, *draft_logits = logits
        own_scores = self._sampled_at.scores(target_logits)
        token_id = gumbel_argmax(own_scores, self.sequence.seed, self.sequence.num_tokens)
        if self._lookup is not None:
            self._lookup.propose()
        for cell in self._traces:
            is_own = cell == self._sampled_at
            scores = own_scores if is_own else cell.scores(target_logits)
            self._judge(cell, _probs(scores), draft_logits, token_id if is_own else None)
        self.sequence.token_ids.append(token_id)

    def _judge(
        self,
        cell: Cell,
        target_probs: Probs,
        draft_logits: Sequence[Tensor],
        token_id: int | None,
    ) -> None:
        law = entropy(target_probs), int(np.count_nonzero(target_probs))
        traces = self._traces[cell]
        for name, row in zip(self._drafts, draft_logits, strict=True):
            draft_probs = _probs(cell.scores(_fit(row, len(target_probs))))
            found = overlap(target_probs, draft_probs, token_id, self._study.max_law_entries)
            traces[name].positions.append(Position(*law, found))
        if self._lookup is not None:
            proposal = self._lookup.proposals[-1]
            prob = float(target_probs[proposal[0]]) if proposal else None
            traces[NGRAM].positions.append(
                Position(*law, None if prob is None else _one_hot_overlap(prob))
            )

    def traces(self) -> list[Trace]:
        """All traces of this text, rounds included where they are defined."""
        own = self._traces.get(self._sampled_at, {})
        for name, trace in own.items():
            trace.rounds = [
                tokens_and_rounds(self._acceptance(name, trace, rule)) for rule in range(len(RULES))
            ]
        return [trace for by_name in self._traces.values() for trace in by_name.values()]

    def _acceptance(self, name: str, trace: Trace, rule: int) -> NDArray[np.float64]:
        """Acceptance by round start and draft position, given the text."""
        if name == NGRAM and self._lookup is not None:
            return self._lookup.acceptance()
        given = [p.overlap.given_token[rule] for p in trace.positions if p.overlap is not None]
        return consecutive(np.array(given), self._study.k)


class _Lookup:
    """What prompt lookup proposes at every position of one text."""

    def __init__(self, sequence: TokenSequence, ngram: tuple[int, int], k: int) -> None:
        self._sequence = sequence
        self._k = k
        self._proposer = NgramProposer(*ngram)
        self._proposer.open([sequence])
        self.proposals: list[list[int]] = []

    def propose(self) -> None:
        found = self._proposer.propose({self._sequence.seq_id: self._k}, 0.0)
        draft = found.get(self._sequence.seq_id)
        self.proposals.append(draft.token_ids if draft else [])

    def acceptance(self) -> NDArray[np.float64]:
        """1 where a proposed token is the text's, else 0: [rounds, k], whatever the rule."""
        output = self._sequence.output_token_ids
        starts = range(max(0, len(output) - self._k))
        accepted = np.zeros((len(starts), self._k))
        for start in starts:
            for offset, token_id in enumerate(self.proposals[start]):
                accepted[start, offset] = token_id == output[start + offset]
        return accepted


def _sequence(
    number: int, prompt_ids: list[int], seed: int, eos: frozenset[int], max_tokens: int
) -> TokenSequence:
    return TokenSequence(
        seq_id=number,
        request_id=str(number),
        token_ids=list(prompt_ids),
        num_prompt_tokens=len(prompt_ids),
        params=SamplingParams(max_tokens=max_tokens),
        seed=seed,
        verification=Verification.COUPLED,
        eos_token_ids=eos,
        max_model_len=len(prompt_ids) + max_tokens,
    )


def _probs(scores: Tensor) -> Probs:
    probs: Probs = torch.softmax(scores, dim=-1).cpu().numpy()
    return probs


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """A draft's logits [V'] as the target's vocabulary has it: padding cut off, or added."""
    if len(logits) >= vocab_size:
        return logits[:vocab_size]
    return F.pad(logits, (0, vocab_size - len(logits)), value=-torch.inf)


def _one_hot_overlap(prob: float) -> Overlap:
    """A draft token chosen without chance is accepted with the target's probability of it."""
    return Overlap((prob,) * len(RULES), (), coupled_bound(prob))
