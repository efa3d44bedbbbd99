"""From acceptance along a text to the mean acceptance length of rounds of K draft tokens.

The target's text is the same whichever tokens were accepted. Given the text, each verified draft
token was accepted independently with accepted mass / target probability of the text's token: the
joint chance of a text and its accepted and recovered tokens is a product over positions, and
summing over the latter leaves the product of the target's own probabilities. So the law of the
rounds follows from one reading of the text, with nothing sampled. Pure numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The first output token comes from the prompt's own pass, which no draft precedes.
FIRST_START = 1


def consecutive(acceptance: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Rounds [n - k, k] of a drafter whose j-th token, all before it accepted, is the one that it
    would draft first j positions later: any model that drafts token by token.

    `acceptance` [n]: chance at each text position.
    """
    if len(acceptance) <= k:
        return np.empty((0, k))
    return np.lib.stride_tricks.sliding_window_view(acceptance[:-1], k)


def tokens_and_rounds(acceptance: NDArray[np.float64]) -> tuple[float, float]:
    """Expected (tokens, rounds) over a text; their quotient is the mean acceptance length.

    `acceptance` [s, k]: chance that draft token j of a round that starts at position s is
    accepted, given that those before it were. Rows are those rounds alone that fit whole into
    the text, bonus token included, so that its end cuts none short.
    """
    num_starts, k = acceptance.shape
    starts = np.zeros(num_starts + k + 1)
    starts[FIRST_START] = 1.0
    num_tokens = num_rounds = 0.0
    for start in range(FIRST_START, num_starts):
        survival = np.cumprod(acceptance[start])
        ends = np.concatenate(([1.0], survival)) - np.concatenate((survival, [0.0]))
        starts[start + 1 : start + k + 2] += starts[start] * ends
        num_rounds += starts[start]
        num_tokens += starts[start] * (1 + survival.sum())
    return float(num_tokens), float(num_rounds)
