"""How a draft picks its tokens, so that the target's verification stays exact.

Greedy: the argmax. Coupled: the draft's own law with the target's noise. Rejection and block: a
sparse law, and a token sampled from exactly that law. The draft never decides here whether to
send a token: a decision that saw the sampled token would bias the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.coupled import coupled_tokens
from specdec.sampling.law import TOTAL_WEIGHT, SparseLaw
from specdec.sampling.philox import Domain, uniform_integer
from specdec.sampling.processors import greedy_tokens, makes_law, probs
from specdec.sequence import Verification


@dataclass(slots=True)
class DraftItem:
    """One token to draft. `position`: its absolute index in the target's sequence.

    `proposal` never repeats for a position of a session: a position drafted again, after a
    rejection, needs a fresh draw, since the target has already judged by the old one.
    """

    params: SamplingParams
    seed: int
    verification: Verification
    position: int
    proposal: int
    max_law_entries: int


Drafted = tuple[int, SparseLaw | None]


def sample_draft(logits: Tensor, items: Sequence[DraftItem]) -> list[Drafted | None]:
    """A token, and its law in rejection and block mode, for each row of adjusted logits [n, V];
    None where the row makes no law."""
    assert len(items) == len(logits)
    return [
        None
        if greedy_id is None
        else (greedy_id, None)
        if item.verification is Verification.GREEDY
        else _sample(logits[row : row + 1], item)
        for row, (item, greedy_id) in enumerate(zip(items, _greedy_ids(logits, items), strict=True))
    ]


def _greedy_ids(logits: Tensor, items: Sequence[DraftItem]) -> list[int | None]:
    """The argmax where anyone needs it, else any number; None where a row makes no law."""
    if any(item.verification is Verification.GREEDY for item in items):
        return greedy_tokens(logits)
    return [0 if is_law else None for is_law in makes_law(logits).tolist()]


def _sample(logits: Tensor, item: DraftItem) -> Drafted:
    if item.verification is Verification.COUPLED:
        return next(coupled_tokens(logits, item.params, item.seed, item.position)), None
    draft_probs = probs(logits, item.params)[0].cpu().numpy()
    law = SparseLaw.from_probs(draft_probs, item.max_law_entries)
    integer = uniform_integer(
        TOTAL_WEIGHT, item.seed, Domain.PROPOSAL, item.position, round=item.proposal
    )
    return law.sample(integer), law
