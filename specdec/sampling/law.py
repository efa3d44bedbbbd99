"""The sparse draft law: the distribution that a draft samples from, exactly as it is sent.

Weights are u16 and sum to 65535, ids ascend, and sampling is integer inverse CDF, so that draft
and target hold the same numbers. It knows no model and no randomness: the
caller brings the probabilities, and the integer to sample with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOTAL_WEIGHT = 65535


@dataclass(slots=True)
class SparseLaw:
    """A distribution over a few token ids: `ids` u32 [n] ascending, `weights` u16 [n]."""

    ids: NDArray[np.uint32]
    weights: NDArray[np.uint16]

    @classmethod
    def from_probs(
        cls, probs: NDArray[np.float64], max_entries: int, min_mass: float = 0.98
    ) -> SparseLaw:
        """The likeliest tokens of `probs` [V] until they hold `min_mass`, renormalised.

        At most `max_entries`; equally likely tokens are taken in the order of their ids.
        """
        likeliest = _likeliest(probs, max_entries)
        mass_before = np.cumsum(probs[likeliest]) - probs[likeliest]
        kept = likeliest[mass_before < min_mass * probs.sum()]
        ids = np.sort(kept[probs[kept] > 0])
        weights = _largest_remainder(probs[ids])
        return cls(ids[weights > 0].astype(np.uint32), weights[weights > 0].astype(np.uint16))

    @classmethod
    def one_hot(cls, token_id: int) -> SparseLaw:
        """The law of a token that was chosen without chance."""
        return cls(np.array([token_id], np.uint32), np.array([TOTAL_WEIGHT], np.uint16))

    @property
    def probs(self) -> NDArray[np.float64]:
        """The probabilities of `ids`, float64 [n]."""
        return self.weights / float(TOTAL_WEIGHT)

    def validate(self, vocab_size: int) -> str | None:
        """Why this is not a law over `vocab_size` tokens, or None. For laws from outside."""
        if len(self.ids) != len(self.weights):
            return "law_length_mismatch"
        if len(self.ids) == 0:
            return "law_empty"
        if np.any(self.ids[1:] <= self.ids[:-1]):
            return "law_ids_not_ascending"
        if self.ids[-1] >= vocab_size:
            return "law_id_out_of_range"
        if np.any(self.weights == 0):
            return "law_zero_weight"
        if int(self.weights.sum(dtype=np.int64)) != TOTAL_WEIGHT:
            return "law_weights_do_not_sum"
        return None

    def sample(self, integer: int) -> int:
        """The token at `integer`, 0 <= integer < 65535, by inverse CDF."""
        assert 0 <= integer < TOTAL_WEIGHT
        cumulative = np.cumsum(self.weights, dtype=np.int64)
        return int(self.ids[np.searchsorted(cumulative, integer, side="right")])

    def prob(self, token_id: int) -> float:
        """The probability of one token; 0 for a token that the law does not list."""
        index = int(np.searchsorted(self.ids, token_id))
        if index == len(self.ids) or self.ids[index] != token_id:
            return 0.0
        return int(self.weights[index]) / TOTAL_WEIGHT


def _likeliest(probs: NDArray[np.float64], num: int) -> NDArray[np.intp]:
    """Ids of the `num` largest entries, largest first, ties by id."""
    if num >= len(probs):
        return np.argsort(-probs, kind="stable")
    threshold = np.partition(probs, len(probs) - num)[len(probs) - num]
    candidates = np.flatnonzero(probs >= threshold)
    return candidates[np.argsort(-probs[candidates], kind="stable")][:num]


def _largest_remainder(probs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers proportional to `probs` that sum to 65535; left-over units to the largest rests."""
    exact = probs * (TOTAL_WEIGHT / probs.sum())
    weights: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(weights - exact, kind="stable")
    weights[by_remainder[: TOTAL_WEIGHT - int(weights.sum())]] += 1
    return weights
