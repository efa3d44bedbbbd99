"""How likely draft tokens are to be accepted: drafter -> outcome before -> class -> request.

Learns from outcomes of verification only. Costs, load and decisions are other modules' business.
Everything is an array over the sequences of a step, since 256 of them are asked for at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.change import ChangeDetector, WakeDetector
from specdec.speculation.controller.confidence import Calibration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# One observation is one proposal. A drafter's counts reach back over 10,000 of them, a class's over
# 500, a request's over 50.
DRAFTER_DECAY = 0.9999
CLASS_DECAY = 0.998
REQUEST_DECAY = 0.98
# Pseudo-observations that tie an estimate to the one above it.
PRIOR_WEIGHT = 24.0
CLASS_WEIGHT = 24.0
# After a change the past counts as this many proposals in each cell, and no more.
KEPT_AFTER_CHANGE = 4.0
# A success of a drafter that was believed to be better than this is no news.
IN_DOUBT = 0.6
# The outcome before: none yet; a rejection after 0, 1, 2-3, 4-7, 8 and more accepted tokens; or
# none rejected, for a streak of 1, 2-3, 4-7, 8-15, 16 and more tokens in one or several proposals.
REJECTED_FROM = np.array([1, 2, 4, 8])
STREAK_FROM = np.array([2, 4, 8, 16])
FRESH, REJECTED, STREAK, NUM_OUTCOMES = 0, 1, 6, 11
# How often the last few proposals had their first token accepted: a running mean, in five classes.
RUN_RATE = 0.15
RUNS_FROM = np.array([0.03, 0.1, 0.25, 0.5])
NUM_RUNS = 5
NUM_CELLS = NUM_OUTCOMES * NUM_RUNS
RATIO_POSITIONS = 4
# With so many trials an acceptance is known to about 10 %: deeper draft tokens need no probes.
KNOWN_TRIALS = 24.0
MAX_ACCEPTANCE = 0.999
# A model below this after so many trials is wrongly loaded, or of another family: a right one, at
# 0.3 or more, is called so with probability below 1e-6 (binomial tail).
BROKEN_ACCEPTANCE = 0.15
BROKEN_TRIALS = 200.0
MAX_REQUESTS = 4096
MAX_CLASSES = 256
_NO_SLOTS: tuple[list[int], Ints] = ([], np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DrafterPrior:
    """What is believed of a drafter before it has been seen.

    acceptance: probability that draft token j is accepted, given that all before it were. The last
        value goes on for ever.
    request_weight: expected accepted tokens that tie a request to its drafter's average. Requests
        of lookup differ more than those of models do (published traces: first-token rates spread
        like Beta laws of concentration 9 to 180 and 24 to 120).
    cell_weight: pseudo-observations that tie an estimate in one situation to those in others.
        Lookup is bursty: what it had accepted last says most of what it will have accepted next
        (lag-1 autocorrelation 0.03-0.43 in published traces). Models hardly are (0.03-0.06).
    relative_draft_s: seconds of one draft step over seconds of one target step of one token.
    """

    acceptance: tuple[float, ...]
    request_weight: float
    cell_weight: float
    relative_draft_s: float


MODEL_PRIOR = DrafterPrior((0.75, 0.75, 0.78, 0.8), 48.0, 16.0, 0.4)
LOOKUP_PRIOR = DrafterPrior((0.45, 0.7, 0.8, 0.85), 6.0, 4.0, 0.0)
PRIORS = {"ngram": LOOKUP_PRIOR}


def prior_of(drafter: str) -> DrafterPrior:
    return PRIORS.get(drafter, MODEL_PRIOR)


class _Counts:
    """Decayed trials and successes of one drafter by position, in cells: one for each outcome
    before and each run of outcomes before that."""

    def __init__(self, prior: DrafterPrior, max_k: int) -> None:
        curve = prior.acceptance
        self._weight = prior.cell_weight
        self.prior = np.array([curve[min(j, len(curve) - 1)] for j in range(max_k)])
        self.cells = np.zeros((2, NUM_OUTCOMES, NUM_RUNS, max_k))
        self.change = ChangeDetector()
        self.wake = WakeDetector()
        self.calibration = Calibration()
        self._table: Floats | None = None

    def acceptance(self) -> Floats:
        """[NUM_CELLS, max_k]: of draft token j, given that all before it were accepted."""
        if self._table is None:
            # Each cell leans on what the others of its kind say, so that no proposal counts twice.
            by_outcome = self.cells.sum(axis=2)
            others = by_outcome.sum(axis=1)[:, None] - by_outcome
            overall = _shrunk(others, self.prior, PRIOR_WEIGHT)
            siblings = by_outcome[:, :, None] - self.cells
            outcome = _shrunk(siblings, overall[:, None], 2 * self._weight)
            self._table = _shrunk(self.cells, outcome, self._weight).reshape(NUM_CELLS, -1)
        return self._table

    def overall(self) -> Floats:
        """[max_k]: the average over all situations."""
        return _shrunk(self.cells.sum(axis=(1, 2)), self.prior, PRIOR_WEIGHT)

    def add(self, cells: Ints, trials: Floats, successes: Floats) -> None:
        """One proposal in each row, [rows] and [rows, max_k]."""
        member = (np.arange(NUM_CELLS)[:, None] == cells).astype(np.float64)
        new = np.stack((member @ trials, member @ successes))
        self.cells *= DRAFTER_DECAY ** len(cells)
        self.cells += new.reshape(self.cells.shape)
        self._table = None

    def num_trials(self) -> Floats:
        """[max_k]: proposals that said something of each position."""
        trials: Floats = self.cells[0].sum(axis=(0, 1))
        return trials

    def forget(self, kept: float) -> None:
        """Let each cell count as at most `kept` proposals from here on."""
        first = self.cells[0, :, :, 0]
        self.cells *= np.minimum(1.0, kept / np.maximum(first, kept))[:, :, None]
        self._table = None


def _shrunk(counts: Floats, towards: Floats, weight: float) -> Floats:
    """Posterior mean with `weight` pseudo-observations at `towards`.

    counts: trials and successes, [2, ...]."""
    trials, successes = counts[0], counts[1]
    result: Floats = (successes + weight * towards) / (trials + weight)
    return result


def _with_odds(acceptance: Floats, ratio: Floats) -> Floats:
    """[rows, max_k], the odds of each row multiplied."""
    odds = ratio[:, None] * acceptance
    result: Floats = odds / (1.0 - acceptance + odds)
    return result


class AcceptanceModel:
    """Acceptance and survival estimates for every (sequence, drafter) pair.

    A proposal of d tokens of which a are accepted is a trial at positions 1..min(a + 1, d) and a
    success at 1..a: positions behind the first rejection say nothing (censored counts). A class
    and a request multiply the odds of the table by accepted over expected, both shrunk to 1.
    """

    def __init__(self, max_k: int, max_requests: int = MAX_REQUESTS) -> None:
        self._max_k = max_k
        self._positions = np.arange(max_k)
        self._drafters: dict[str, _Counts] = {}
        self._slots: OrderedDict[tuple[int, str], int] = OrderedDict()
        # The slots that were asked for last, by drafter: they are asked for again in the same step.
        self._last_slots: dict[str, tuple[list[int], Ints]] = {}
        self._free = list(range(max_requests - 1, -1, -1))
        self._classes: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._outcome = np.zeros(max_requests, dtype=np.int64)
        self._streak = np.zeros(max_requests, dtype=np.int64)
        self._run = np.zeros(max_requests)
        self._class = np.zeros(max_requests, dtype=np.int64)
        self._confidence = np.full(max_requests, np.nan)  # of the proposal that is expected
        # accepted and expected, of requests and of classes
        self._request_counts = np.zeros((2, max_requests))
        self._class_counts = np.zeros((2, MAX_CLASSES))

    def survival(
        self,
        drafter: str,
        seq_ids: SequenceOf[int],
        classes: SequenceOf[str] = (),
        confidence: Floats | None = None,
    ) -> Floats:
        """[sequences, max_k]: probability that the first j draft tokens are all accepted.

        `classes` names the class of each sequence (a tenant, a task); it is heard once, when the
        sequence is first seen. `confidence`: [sequences] in [0, 1], what the drafter says of its
        coming proposals; NaN where nothing.
        """
        slots = self._slots_of(drafter, seq_ids, classes)
        acceptance = self._acceptance(drafter, slots)
        if confidence is not None:
            self._confidence[slots] = confidence
            calibration = self._counts(drafter).calibration
            if calibration.is_used:
                acceptance = _with_odds(acceptance, calibration.odds_ratio(confidence))
        result: Floats = np.cumprod(acceptance, axis=1, dtype=np.float64)
        return result

    def _acceptance(self, drafter: str, slots: Ints) -> Floats:
        """[slots, max_k], as history tells."""
        table = np.minimum(self._counts(drafter).acceptance()[self._cells(slots)], MAX_ACCEPTANCE)
        return _with_odds(table, self._ratio(slots, prior_of(drafter).request_weight))

    def _cells(self, slots: Ints) -> Ints:
        runs = np.searchsorted(RUNS_FROM, self._run[slots])
        cells: Ints = self._outcome[slots] * NUM_RUNS + runs
        return cells

    def _ratio(self, slots: Ints, weight: float) -> Floats:
        """[sequences]: the odds of this request over those of its drafter."""
        accepted, expected = self._class_counts[:, self._class[slots]]
        of_class = (accepted + CLASS_WEIGHT) / (expected + CLASS_WEIGHT)
        accepted, expected = self._request_counts[:, slots]
        ratio: Floats = (accepted + weight * of_class) / (expected + weight)
        return ratio

    def record(
        self,
        drafter: str,
        seq_ids: SequenceOf[int],
        drafted: SequenceOf[int],
        accepted: SequenceOf[int],
    ) -> None:
        """Learn from one step's proposals of one drafter; every `drafted` is at least 1."""
        counts = self._counts(drafter)
        slots = self._slots_of(drafter, seq_ids, ())
        num_drafted, num_accepted = np.asarray(drafted), np.asarray(accepted)
        successes = (self._positions < num_accepted[:, None]).astype(np.float64)
        reached = np.minimum(num_accepted + 1, num_drafted)
        trials = (self._positions < reached[:, None]).astype(np.float64)
        cells = self._cells(slots)
        history = self._acceptance(drafter, slots)[:, 0]
        counts.calibration.observe(self._confidence[slots], history, successes[:, 0])
        self._confidence[slots] = np.nan
        surprise = float((successes[:, 0] - history).sum())
        # Forget before these outcomes are counted: they are of the new times. A whole batch that
        # surprises in every step would never be learned from.
        if counts.change.observe(surprise, len(slots)):
            self._forget(drafter, slots)
        expected = trials[:, :RATIO_POSITIONS] * counts.acceptance()[cells, :RATIO_POSITIONS]
        self._weigh(slots, successes[:, :RATIO_POSITIONS].sum(axis=1), expected.sum(axis=1))
        counts.add(cells, trials, successes)
        self._outcome[slots] = self._outcomes(slots, num_drafted, num_accepted)
        self._run[slots] += RUN_RATE * (successes[:, 0] - self._run[slots])

    def _outcomes(self, slots: Ints, num_drafted: Ints, num_accepted: Ints) -> Ints:
        whole = num_accepted >= num_drafted
        streak = np.where(whole, self._streak[slots] + num_accepted, 0)
        self._streak[slots] = streak
        result: Ints = np.where(
            whole,
            STREAK + np.searchsorted(STREAK_FROM, streak, side="right"),
            REJECTED + np.searchsorted(REJECTED_FROM, num_accepted, side="right"),
        )
        return result

    def _weigh(self, slots: Ints, accepted: Floats, expected: Floats) -> None:
        """Count accepted tokens against those that the drafter's average made expect."""
        new = np.stack((accepted, expected))
        self._request_counts[:, slots] = REQUEST_DECAY * self._request_counts[:, slots] + new
        classes = self._class[slots]
        for index in set(classes.tolist()):
            mine = classes == index
            self._class_counts[:, index] *= CLASS_DECAY ** int(mine.sum())
            self._class_counts[:, index] += new[:, mine].sum(axis=1)

    def _forget(self, drafter: str, slots: Ints) -> None:
        """Times changed: let the new ones be learned as quickly as the first."""
        self._counts(drafter).forget(KEPT_AFTER_CHANGE)
        self._forget_requests(slots)

    def _forget_requests(self, slots: Ints) -> None:
        self._request_counts[:, slots] = 0.0
        self._class_counts[:, np.unique(self._class[slots])] = 0.0

    def probed(self, drafter: str, seq_id: int, was_accepted: bool, alone: bool) -> bool:
        """A request that drafts nothing tried one draft token; to be told before `record`. If such
        trials succeed too often for what was believed, that is out of date: for this request, and
        for all where it was `alone`, since nobody else shows how the drafter fares.

        Returns whether it succeeded though that was in doubt: where it was not, load keeps the
        drafter off, and one success more would say nothing."""
        slots = self._slots_of(drafter, [seq_id], ())
        counts = self._counts(drafter)
        believed = float(self._acceptance(drafter, slots)[0, 0])
        if counts.wake.observe(believed, was_accepted):
            self._forget_requests(slots)
            if alone:
                counts.forget(KEPT_AFTER_CHANGE)
        return was_accepted and believed < IN_DOUBT

    def close(self, seq_id: int) -> None:
        """Drop a finished sequence; its drafter's average keeps what it taught."""
        self._last_slots.clear()
        for drafter in self._drafters:
            slot = self._slots.pop((seq_id, drafter), None)
            if slot is not None:
                self._free.append(slot)

    def is_known(self, drafter: str) -> NDArray[np.bool_]:
        """[max_k]: whether enough was seen of draft tokens at each position."""
        return self._counts(drafter).num_trials() >= KNOWN_TRIALS

    def first_acceptance(self) -> dict[str, float]:
        """Acceptance of the first draft token by drafter, for metrics."""
        return {name: float(counts.overall()[0]) for name, counts in self._drafters.items()}

    def broken(self) -> dict[str, bool]:
        """Whether a draft model, which is built to resemble the target, hardly ever does."""
        return {
            name: bool(
                prior_of(name).relative_draft_s > 0
                and counts.num_trials()[0] >= BROKEN_TRIALS
                and counts.overall()[0] < BROKEN_ACCEPTANCE
            )
            for name, counts in self._drafters.items()
        }

    def uses_confidence(self) -> dict[str, bool]:
        """Whether a drafter's confidence has proved to be better than history."""
        return {name: counts.calibration.is_used for name, counts in self._drafters.items()}

    def num_changes(self) -> dict[str, int]:
        """Change points found, by drafter."""
        return {name: counts.change.num_changes for name, counts in self._drafters.items()}

    def _counts(self, drafter: str) -> _Counts:
        if drafter not in self._drafters:
            self._drafters[drafter] = _Counts(prior_of(drafter), self._max_k)
        return self._drafters[drafter]

    def _slots_of(self, drafter: str, seq_ids: SequenceOf[int], classes: SequenceOf[str]) -> Ints:
        seq_ids = list(seq_ids)
        last_ids, last_slots = self._last_slots.get(drafter, _NO_SLOTS)
        if seq_ids == last_ids:
            return last_slots
        slots = self._slots
        found = [slots.get((seq_id, drafter), -1) for seq_id in seq_ids]
        if -1 in found:
            self._counts(drafter)
            names = classes or [""] * len(found)
            for row, (seq_id, name) in enumerate(zip(seq_ids, names, strict=True)):
                if found[row] < 0:
                    found[row] = self._open(seq_id, drafter, name)
        result = np.array(found, dtype=np.int64)
        self._last_slots[drafter] = (seq_ids, result)
        return result

    def _open(self, seq_id: int, drafter: str, name: str) -> int:
        self._last_slots.clear()
        # More pairs than slots: the oldest give way.
        slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
        self._slots[seq_id, drafter] = slot
        self._outcome[slot] = FRESH
        self._streak[slot] = 0
        self._run[slot] = 0.0
        self._confidence[slot] = np.nan
        self._request_counts[:, slot] = 0.0
        self._class[slot] = self._class_index(drafter, name)
        return slot

    def _class_index(self, drafter: str, name: str) -> int:
        key = (drafter, name)
        index = self._classes.get(key)
        if index is None:
            full = len(self._classes) == MAX_CLASSES
            index = self._classes.popitem(last=False)[1] if full else len(self._classes)
            self._classes[key] = index
            self._class_counts[:, index] = 0.0
        self._classes.move_to_end(key)  # a full table lets the longest unused one go
        return index
