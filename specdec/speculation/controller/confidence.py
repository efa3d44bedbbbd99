"""What a drafter says of its coming proposal, turned into acceptance by what became of it.

Knows confidences in [0, 1] and outcomes. A confidence must not depend on the value of a token whose
fate it decides (the selection trap): match lengths and laws are safe, probabilities of sampled
tokens are so only where the target's own token decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_BINS = 16
DECAY = 0.999
WEIGHT = 16.0
# Mean log-loss in nats by which it must beat history, over about 1 / (1 - DECAY) proposals.
MARGIN = 0.002
MIN_PROPOSALS = 200.0
EPSILON = 1e-3


class Calibration:
    """Odds of acceptance by confidence, over those that history tells; one for each drafter.

    Each of NUM_BINS equal intervals keeps accepted and expected first tokens; their quotient,
    shrunk to 1, multiplies the odds. Used only while it predicts first tokens better than history
    alone, by decayed log-loss.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, NUM_BINS))
        self._loss = np.zeros(2)  # of history, and with confidence
        self._num_proposals = 0.0

    @property
    def is_used(self) -> bool:
        """Whether it has proved to be better than history."""
        if self._num_proposals < MIN_PROPOSALS:
            return False
        history, calibrated = self._loss / self._num_proposals
        return bool(calibrated < history - MARGIN)

    def odds_ratio(self, confidence: Floats) -> Floats:
        """[sequences]: by what to multiply the odds; 1 where no confidence (NaN) is offered."""
        accepted, expected = self._counts
        ratios = (accepted + WEIGHT) / (expected + WEIGHT)
        result: Floats = np.where(np.isnan(confidence), 1.0, ratios[_bins(confidence)])
        return result

    def observe(self, confidence: Floats, history: Floats, accepted: Floats) -> None:
        """Learn from first tokens, [proposals] each; `history`: their acceptance as history tells;
        `accepted`: 0 or 1. Those without a confidence are passed over."""
        told = ~np.isnan(confidence)
        if not told.any():
            return
        confidence, history, accepted = confidence[told], history[told], accepted[told]
        ratio = self.odds_ratio(confidence)
        calibrated = ratio * history / (1 - history + ratio * history)
        decay = DECAY ** len(history)
        losses = (_log_loss(history, accepted), _log_loss(calibrated, accepted))
        self._loss = decay * self._loss + np.array(losses)
        self._num_proposals = decay * self._num_proposals + len(history)
        bins = _bins(confidence)
        self._counts *= decay
        self._counts[0] += np.bincount(bins, accepted, NUM_BINS)
        self._counts[1] += np.bincount(bins, history, NUM_BINS)


def _bins(confidence: Floats) -> Ints:
    clean = np.clip(np.nan_to_num(confidence), 0.0, 1.0)
    bins: Ints = np.minimum((clean * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    return bins


def _log_loss(predicted: Floats, accepted: Floats) -> float:
    chance = np.clip(predicted, EPSILON, 1 - EPSILON)
    return float(-np.log(np.where(accepted > 0, chance, 1 - chance)).sum())
