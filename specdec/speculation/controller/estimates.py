"""What the controller believes of drafters: acceptance and delivery, learned from every step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.acceptance import AcceptanceModel
from specdec.speculation.controller.interface import BatchState, SequenceResult, SequenceState
from specdec.speculation.controller.probe import Prober
from specdec.speculation.controller.step import PlannedStep

Floats = NDArray[np.float64]

DELIVERED_RATE = 0.1


class Estimates:
    """Chance that a draft token is drafted in time and accepted."""

    def __init__(self, max_k: int) -> None:
        self._max_k = max_k
        self._acceptance = AcceptanceModel(max_k)
        self._delivered: dict[str, float] = defaultdict(lambda: 1.0)

    def survival(self, step: PlannedStep) -> Floats:
        """[sequences, max_k]: that the first j draft tokens are all accepted, by the drafter that
        each sequence has; zeros where it has none."""
        if len(step.drafters) == 1 and step.max_k.all():
            return self._of(step.drafters[0], step.sequences)
        survival = np.zeros((len(step.max_k), self._max_k))
        for index, drafter in enumerate(step.drafters):
            rows = np.flatnonzero((step.drafter == index) & (step.max_k > 0))
            survival[rows] = self._of(drafter, [step.sequences[row] for row in rows.tolist()])
        return survival

    def survival_by(self, drafter: str, state: BatchState, available: NDArray[np.bool_]) -> Floats:
        """[sequences, max_k]: the same, if the `available` sequences had this drafter."""
        rows = np.flatnonzero(available)
        survival = np.zeros((len(available), self._max_k))
        survival[rows] = self._of(drafter, [state.sequences[row] for row in rows.tolist()])
        limits = np.array([sequence.max_k for sequence in state.sequences])
        survival[np.arange(self._max_k) >= limits[:, None]] = 0.0
        return survival

    def _of(self, drafter: str, sequences: SequenceOf[SequenceState]) -> Floats:
        if not self._max_k:
            return np.zeros((len(sequences), 0))
        seq_ids = [sequence.seq_id for sequence in sequences]
        classes = [sequence.label for sequence in sequences]
        confidence = None
        if any(sequence.confidence for sequence in sequences):
            told = [sequence.confidence.get(drafter, math.nan) for sequence in sequences]
            confidence = np.array(told)
        survival = self._acceptance.survival(drafter, seq_ids, classes, confidence)
        return survival * self._delivered[drafter]

    def is_known(self, drafter: str) -> NDArray[np.bool_]:
        """[max_k]: whether enough was seen of draft tokens at each position."""
        return self._acceptance.is_known(drafter)

    def observe(self, results: SequenceOf[SequenceResult], prober: Prober) -> None:
        """Learn from a verified step; `prober` tells which proposals were probes."""
        if not self._max_k:
            return
        by_drafter: dict[str, list[SequenceResult]] = defaultdict(list)
        for result in results:
            if result.drafter is not None and result.planned_k > 0:
                by_drafter[result.drafter].append(result)
        for drafter, planned in by_drafter.items():
            self._observe_delivery(drafter, planned, prober)
        for drafter, trials in _trials(results).items():
            self._acceptance.record(drafter, *zip(*trials, strict=True))

    def _observe_delivery(
        self, drafter: str, planned: list[SequenceResult], prober: Prober
    ) -> None:
        share = sum(r.num_draft_tokens for r in planned) / sum(r.planned_k for r in planned)
        self._delivered[drafter] += DELIVERED_RATE * (min(share, 1.0) - self._delivered[drafter])
        for r in planned:
            accepted = prober.outcome(r.seq_id, r.num_draft_tokens, r.num_accepted_tokens)
            if accepted is not None:
                alone = len(planned) == 1
                if self._acceptance.probed(drafter, r.seq_id, accepted, alone):
                    prober.try_again(r.seq_id)

    def close(self, seq_id: int) -> None:
        """Forget a sequence; what it taught about its drafter stays."""
        self._acceptance.close(seq_id)

    def snapshot(self) -> dict[str, float]:
        """By drafter: acceptance of first tokens, the share of asked tokens that came, change
        points found, whether confidence is used, whether a model seems broken."""
        acceptance = self._acceptance
        values: dict[str, float] = {}
        for drafter, first in acceptance.first_acceptance().items():
            values[f"acceptance_first_{drafter}"] = first
            values[f"delivered_{drafter}"] = self._delivered[drafter]
            values[f"acceptance_changes_{drafter}"] = float(acceptance.num_changes()[drafter])
            values[f"confidence_used_{drafter}"] = float(acceptance.uses_confidence()[drafter])
            values[f"broken_{drafter}"] = float(acceptance.broken()[drafter])
        return values


def _trials(results: SequenceOf[SequenceResult]) -> dict[str, list[tuple[int, int, int]]]:
    """drafter -> (sequence, tokens compared, tokens accepted). What scoring tells of a drafter
    includes what its own proposal showed, and a token more where all of that was accepted."""
    trials: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for result in results:
        scored = {score.drafter for score in result.scored} if result.scored else ()
        for score in result.scored:
            trials[score.drafter].append((result.seq_id, score.num_compared, score.num_matching))
        if result.drafter and result.drafter not in scored and result.num_draft_tokens > 0:
            row = (result.seq_id, result.num_draft_tokens, result.num_accepted_tokens)
            trials[result.drafter].append(row)
    return trials
