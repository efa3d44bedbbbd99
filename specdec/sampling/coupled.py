"""Coupled sampling: a token as the argmax of logits plus shared Gumbel noise (2408.07978).

Target and draft call this same function. The noise depends on the request's seed, the absolute
position and the token id alone, so each draws its own law exactly and the two agree often:
P(both = i) = 1 / sum_j max(target_j / target_i, draft_j / draft_i).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.philox import MAX_NOISE, MIN_NOISE, gumbel_noise, gumbel_noise_row
from specdec.sampling.processors import filtered_logits

# Below this share of the vocabulary, noise is cheaper for the support alone.
SPARSE_SHARE = 0.25


def coupled_tokens(
    logits: Tensor, params: SamplingParams, seed: int, position: int
) -> Iterator[int]:
    """One token for each row of adjusted `logits` [r, V]; row j decides `position` + j.

    Computed as they are asked for: rows behind a rejection cost nothing.
    """
    for offset, row in enumerate(logits.split(1)):
        yield _gumbel_argmax(filtered_logits(row, params)[0], seed, position + offset)


def _gumbel_argmax(scores: Tensor, seed: int, position: int) -> int:
    """argmax(scores + noise) of one row, float64 [V], where -inf excludes a token."""
    # Noise is bounded, so a token this far below the best cannot win: skipping it is exact.
    can_win = scores > scores.max() - (MAX_NOISE - MIN_NOISE)
    candidates = can_win.nonzero().flatten()
    if len(candidates) < SPARSE_SHARE * len(scores):
        noise = gumbel_noise(seed, position, candidates)
        return int(candidates[(scores[candidates] + noise).argmax()])
    noise = gumbel_noise_row(seed, position, len(scores), scores.device)
    return int((scores + noise).argmax())
