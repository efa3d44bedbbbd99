"""How likely draft tokens are to be accepted: counts per position, request -> drafter -> prior.

Learns from outcomes of verification only. Costs, load and decisions are other modules' business.
Everything is an array over the sequences of a step, since 256 of them are asked for at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REQUEST_DECAY = 0.99
DRAFTER_DECAY = 0.995
PRIOR_WEIGHT = 8.0
RATIO_WEIGHT = 8.0
MAX_REQUESTS = 4096
AFTER_MISS, AFTER_FULL = 0, 1


@dataclass(frozen=True, slots=True)
class DrafterPrior:
    """What is believed of a drafter before it has been seen.

    acceptance: probability that draft token j is accepted, given that all before it were; by the
        outcome of the previous proposal (AFTER_MISS, AFTER_FULL). The last value goes on for ever.
    bursty: whether that outcome matters. It does for lookup, hardly for models (lag-1
        autocorrelation 0.03-0.43 against 0.03-0.06 in published traces).
    request_weight: pseudo-observations that tie a request to its drafter's average; the spread of
        requests around it is a Beta law of about this concentration.
    relative_draft_s: seconds of one draft step over seconds of one target step of one token.
    """

    acceptance: tuple[tuple[float, ...], tuple[float, ...]]
    bursty: bool
    request_weight: float
    relative_draft_s: float


MODEL_PRIOR = DrafterPrior(((0.78, 0.8), (0.78, 0.8)), False, 24.0, 0.4)
LOOKUP_PRIOR = DrafterPrior(((0.45, 0.7, 0.8, 0.85), (0.8, 0.9, 0.92, 0.95)), True, 8.0, 0.0)
PRIORS = {"ngram": LOOKUP_PRIOR}


def prior_of(drafter: str) -> DrafterPrior:
    return PRIORS.get(drafter, MODEL_PRIOR)


@dataclass(slots=True)
class _DrafterCounts:
    """Decayed counts of one drafter, [2 contexts, max_k]."""

    prior: DrafterPrior
    prior_acceptance: Floats
    trials: Floats
    successes: Floats

    def acceptance(self) -> Floats:
        prior = PRIOR_WEIGHT * self.prior_acceptance
        result: Floats = (self.successes + prior) / (self.trials + PRIOR_WEIGHT)
        return result


class AcceptanceModel:
    """Acceptance and survival estimates for every (sequence, drafter) pair.

    A proposal of d tokens of which a are accepted is a trial at positions 1..min(a + 1, d) and a
    success at 1..a: positions behind the first rejection say nothing (censored counts).
    """

    def __init__(self, max_k: int, max_requests: int = MAX_REQUESTS) -> None:
        self._max_k = max_k
        self._drafters: dict[str, _DrafterCounts] = {}
        self._slots: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._free = list(range(max_requests - 1, -1, -1))
        self._trials = np.zeros((max_requests, 2, max_k))
        self._successes = np.zeros((max_requests, 2, max_k))
        self._context = np.zeros(max_requests, dtype=np.int64)

    def survival(self, drafter: str, seq_ids: SequenceOf[int]) -> Floats:
        """[sequences, max_k]: probability that the first j draft tokens are all accepted."""
        counts = self._counts(drafter)
        slots = self._slots_of(drafter, seq_ids)
        context = self._context[slots]
        weight = counts.prior.request_weight
        shared = counts.acceptance()[context]
        trials = self._trials[slots, context]
        successes = self._successes[slots, context]
        # A request whose first tokens fail more than usual has little to hope for behind them,
        # where it has hardly any trials of its own.
        expected = (trials * shared).sum(axis=1, keepdims=True)
        ratio = (successes.sum(axis=1, keepdims=True) + RATIO_WEIGHT) / (expected + RATIO_WEIGHT)
        shared = shared * np.minimum(ratio, 1.0)
        acceptance = (successes + weight * shared) / (trials + weight)
        result: Floats = np.cumprod(acceptance, axis=1, dtype=np.float64)
        return result

    def record(
        self,
        drafter: str,
        seq_ids: SequenceOf[int],
        drafted: SequenceOf[int],
        accepted: SequenceOf[int],
    ) -> None:
        """Learn from one step's proposals of one drafter; every `drafted` is at least 1."""
        counts = self._counts(drafter)
        slots = self._slots_of(drafter, seq_ids)
        context = self._context[slots]
        num_drafted, num_accepted = np.asarray(drafted), np.asarray(accepted)
        positions = np.arange(self._max_k)
        successes = (positions < num_accepted[:, None]).astype(np.float64)
        trials = (positions < np.minimum(num_accepted + 1, num_drafted)[:, None]).astype(np.float64)
        for table, new in ((self._trials, trials), (self._successes, successes)):
            table[slots, context] = table[slots, context] * REQUEST_DECAY + new
        for table, new in ((counts.trials, trials), (counts.successes, successes)):
            table *= DRAFTER_DECAY ** np.bincount(context, minlength=2)[:, None]
            np.add.at(table, context, new)
        if counts.prior.bursty:
            self._context[slots] = np.where(num_accepted >= num_drafted, AFTER_FULL, AFTER_MISS)

    def forget(self, drafter: str, seq_id: int, share: float) -> None:
        """Scale down what is known of a drafter, and of this sequence with it: times changed."""
        counts = self._counts(drafter)
        slot = self._slots_of(drafter, [seq_id])[0]
        for table in (counts.trials, counts.successes):
            table *= 1 - share
        for table in (self._trials, self._successes):
            table[slot] *= 1 - share

    def close(self, seq_id: int) -> None:
        """Drop a finished sequence; its drafter's average keeps what it taught."""
        for drafter in self._drafters:
            slot = self._slots.pop((seq_id, drafter), None)
            if slot is not None:
                self._free.append(slot)

    def first_acceptance(self) -> dict[str, float]:
        """Acceptance of the first draft token by drafter, for metrics."""
        return {
            name: float(counts.acceptance()[AFTER_MISS, 0])
            for name, counts in self._drafters.items()
        }

    def _counts(self, drafter: str) -> _DrafterCounts:
        if drafter not in self._drafters:
            prior = prior_of(drafter)
            curves = [
                [curve[min(position, len(curve) - 1)] for position in range(self._max_k)]
                for curve in prior.acceptance
            ]
            shape = (2, self._max_k)
            self._drafters[drafter] = _DrafterCounts(
                prior, np.array(curves).reshape(shape), np.zeros(shape), np.zeros(shape)
            )
        return self._drafters[drafter]

    def _slots_of(self, drafter: str, seq_ids: SequenceOf[int]) -> Ints:
        return np.array([self._slot(seq_id, drafter) for seq_id in seq_ids], dtype=np.int64)

    def _slot(self, seq_id: int, drafter: str) -> int:
        key = (seq_id, drafter)
        slot = self._slots.get(key)
        if slot is None:
            # More pairs than slots: the oldest give way.
            slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
            self._slots[key] = slot
            self._trials[slot] = self._successes[slot] = 0.0
            self._context[slot] = AFTER_MISS
        return slot
