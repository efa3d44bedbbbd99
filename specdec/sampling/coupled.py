"""Coupled sampling: a token as the argmax of logits plus shared Gumbel noise (2408.07978).

Target and draft call this same function. The noise depends on the request's seed, the absolute
position and the token id alone, so each draws its own law exactly and the two agree often:
P(both = i) = 1 / sum_j max(target_j / target_i, draft_j / draft_i).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.philox import gumbel_noise, gumbel_uniform_floor
from specdec.sampling.processors import filtered_logits

# Below this share of the vocabulary, noise is cheaper for the support alone.
SPARSE_SHARE = 1 / 16


def coupled_tokens(
    logits: Tensor, params: SamplingParams, seed: int, position: int
) -> Iterator[int]:
    """One token for each row of adjusted `logits` [r, V]; row j decides `position` + j.

    Computed as they are asked for, so that rows behind a rejection cost nothing; one row at a
    time also fits the processor's cache, which several rows at once do not (3 times slower).
    """
    for offset in range(len(logits)):
        (scores,) = filtered_logits(logits[offset : offset + 1], params)
        yield gumbel_argmax(scores, seed, position + offset)


def gumbel_argmax(scores: Tensor, seed: int, position: int) -> int:
    """argmax of `scores` + noise of one row, float64 [V], where -inf excludes a token."""
    in_support = scores > -math.inf
    if int(in_support.sum()) < SPARSE_SHARE * len(scores):
        candidates = in_support.nonzero().flatten()
    else:
        candidates = _contenders(scores, seed, position)
    if len(candidates) == 1:
        return int(candidates)
    noise = gumbel_noise(seed, position, candidates)
    return int(candidates[(scores[candidates] + noise).argmax()])


def _contenders(scores: Tensor, seed: int, position: int) -> Tensor:
    """Ids of the few tokens that can still win once the upper bits of all noise are known.

    With noise = -log(E), E = -log(1 - v), the winner has the least E * exp(-score). Since
    v <= E, v * exp(-score) is a lower bound that needs no logarithm. The least of those bounds
    belongs to a likely winner; whoever's bound exceeds that token's largest possible
    E * exp(-score) is out.
    """
    inverse_weights = (scores.max() - scores).exp_()
    floor = gumbel_uniform_floor(seed, position, len(scores), scores.device)
    bounds = floor * inverse_weights
    likely = int(bounds.argmin())
    largest_uniform = min(float(floor[likely]) + 2.0**-32, 1 - 2.0**-53)
    to_beat = -math.log1p(-largest_uniform) * float(inverse_weights[likely])
    # The margin is far above the rounding of both sides: a spare contender costs nothing.
    return (bounds <= to_beat * (1 + 1e-9)).nonzero().flatten()
