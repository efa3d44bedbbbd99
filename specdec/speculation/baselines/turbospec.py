"""One K for the batch by predicted goodput, as TurboSpec (SmartSpec, arXiv 2406.14066).

Knows one acceptance rate for everything, and times as linear functions of the step's size.
"""

from __future__ import annotations

from collections import Counter

from specdec.speculation.baselines.base import BatchBaseline
from specdec.speculation.baselines.regression import LinearTimes
from specdec.speculation.controller.interface import BatchState, SequenceResult, StepResult
from specdec.speculation.controller.profile import CostSeed

START_ACCEPTANCE = 0.7
START_MATCH_RATIO = 0.5
NEW_WEIGHT = 0.15
DECIDE_EVERY = 20
BASELINE_BONUS = 1.1
CALIBRATION_KS = (0, 1, 2, 3, 4)
LOOKUP = "ngram"
LOOKUP_MAX_K = 8
LOOKUP_MAX_BATCH = 32


class TurboSpecPolicy(BatchBaseline):
    """K that maximises B (1 - a^(K+1)) / (1 - a) / (draft seconds + target seconds).

    a is one running acceptance rate for all: 0.7 at first, then 0.85 a + 0.15 accepted / drafted of
    each step. Target seconds are linear in (batched tokens, KV tokens), the paper's model of a
    forward pass; draft seconds in (sequences, K), for each drafter. Every 20 steps K is scanned
    upwards from 0, whose goodput counts 1.1 times, until the first that is no better. For prompt
    lookup the share of sequences with a match, a running average too, scales what is gained and
    what is verified; K is at most 8, and 0 beyond 32 sequences.

    The published implementation measures times before it serves: `seed` does that here. Without it
    the steps before the first decision go through K = 0..4. Both go on learning from every step.
    Its scan for prompt lookup comes after the matching, when K can still be cut; here K comes
    first, so that the running share stands in for the matches of the step.
    """

    name = "turbospec"

    def __init__(self, max_k: int, max_wait_s: float, acceptance: float = START_ACCEPTANCE) -> None:
        super().__init__(max_k, max_wait_s)
        self._acceptance = acceptance
        self._match_ratio = START_MATCH_RATIO
        self._target = LinearTimes(2)
        self._drafts: dict[str, LinearTimes] = {}
        self._num_plans = 0
        self._current_k = 0
        self._is_calibrated = False
        self._goodput = 0.0

    @property
    def knows_steps(self) -> bool:
        """Whether what the target's steps take was measured before or seen."""
        return self._target.count > 0

    def seed(self, seed: CostSeed) -> None:
        """Start from measured times; of target and drafters both, they spare the calibration."""
        for step in seed.steps:
            self._target.observe((step.num_tokens, step.num_kv_tokens), step.seconds)
        for drafter, rounds in seed.drafts.items():
            for point in rounds:
                self._observe_draft(drafter, point.num_sequences, point.depth, point.seconds)
        self._is_calibrated = self.knows_steps and bool(self._drafts)

    def _observe_draft(self, drafter: str, num_sequences: int, k: int, seconds: float) -> None:
        times = self._drafts.setdefault(drafter, LinearTimes(2))
        times.observe((num_sequences, k), seconds)

    def _k(self, state: BatchState) -> int:
        self._num_plans += 1
        if self._num_plans % DECIDE_EVERY == 0 and self.knows_steps:
            self._current_k = self._best_k(state)
        elif self._num_plans < DECIDE_EVERY and not self._is_calibrated:
            self._current_k = CALIBRATION_KS[self._num_plans % len(CALIBRATION_KS)]
        return self._current_k

    def _best_k(self, state: BatchState) -> int:
        limit = max((s.max_k for s in state.sequences), default=0)
        if _is_lookup(state):
            limit = min(limit, LOOKUP_MAX_K if len(state.sequences) <= LOOKUP_MAX_BATCH else 0)
        best_k, best = 0, BASELINE_BONUS * self.goodput(0, state)
        for k in range(1, min(limit, self._max_k) + 1):
            goodput = self.goodput(k, state)
            if goodput <= best:
                break
            best_k, best = k, goodput
        self._goodput = best
        return best_k

    def goodput(self, k: int, state: BatchState) -> float:
        """Expected tokens per second of the batch at this K; needs one observed step."""
        batch = len(state.sequences)
        drafting = batch * (self._match_ratio if _is_lookup(state) else 1.0)
        tokens = batch + drafting * sum(self._acceptance**j for j in range(1, k + 1))
        num_tokens = state.num_prefill_tokens + batch + k * drafting
        seconds = self._target.predict((num_tokens, state.num_kv_tokens))
        if k > 0:
            seconds += self._draft_s(k, state)
        return tokens / max(seconds, 1e-9)

    def _draft_s(self, k: int, state: BatchState) -> float:
        """Seconds of all drafters of the step; 0 for one that was never timed."""
        asked = Counter(s.drafter for s in state.sequences if s.drafter is not None)
        return sum(
            self._drafts[drafter].predict((num_sequences, k))
            for drafter, num_sequences in asked.items()
            if drafter in self._drafts
        )

    def observe(self, result: StepResult) -> None:
        """Learn times and acceptance from a step that decoded."""
        if result.sequences:
            self._learn_times(result)
            self._learn_acceptance(self._asked(result))
        super().observe(result)

    def _learn_times(self, result: StepResult) -> None:
        target_s = result.step_s - result.propose_s
        self._target.observe((result.num_tokens, result.num_kv_tokens), target_s)
        asked = [r for r in result.sequences if r.planned_k > 0]
        drafters = {r.drafter for r in asked}
        # Of several drafters nobody knows whose the time was.
        if len(drafters) == 1 and (drafter := drafters.pop()) is not None:
            deepest = max(r.planned_k for r in asked)
            self._observe_draft(drafter, len(asked), deepest, result.propose_s)

    def _learn_acceptance(self, asked: list[SequenceResult]) -> None:
        drafted = sum(r.num_draft_tokens for r in asked)
        if drafted:
            rate = sum(r.num_accepted_tokens for r in asked) / drafted
            self._acceptance += NEW_WEIGHT * (rate - self._acceptance)
        lookups = [r.num_draft_tokens > 0 for r in asked if r.drafter == LOOKUP]
        if lookups:
            self._match_ratio += NEW_WEIGHT * (sum(lookups) / len(lookups) - self._match_ratio)

    def _details(self) -> dict[str, float | str]:
        return {
            "acceptance": self._acceptance,
            "match_ratio": self._match_ratio,
            "predicted_goodput": self._goodput,
        }


def _is_lookup(state: BatchState) -> bool:
    return all(s.drafter in (LOOKUP, None) for s in state.sequences)
