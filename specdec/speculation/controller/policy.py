"""How many draft tokens each sequence gets: survival ranking against the cost of the step.

A pure function of estimates. One budget for the batch, spent where a draft token is likeliest to
be of use (DSpark 2607.05147; notation of design section 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# A depth is left only for one that promises this much more: K must not flap on noise.
KEEP_DEPTH = 0.98
SLOPE_TOKENS = 2
# Less is not worth a token even where its measured cost is nothing: no measurement is that good.
MIN_SURVIVAL = 0.02


@dataclass(frozen=True, slots=True)
class Candidates:
    """The draft positions that may be filled.

    survival: [sequences, max_k], not increasing along a row.
    max_k: [sequences], how many of a row's positions exist.
    drafter: [sequences], index into `StepCosts.propose`; -1 where nothing is drafted.
    """

    survival: Floats
    max_k: Ints
    drafter: Ints


@dataclass(frozen=True, slots=True)
class ProposeCost:
    """Seconds that a step waits for one drafter: by_depth[largest k] + per_token_s * draft tokens.

    by_depth: [max_k + 1], 0 at 0. is_flat: its depth costs nothing, as with lookup.
    """

    by_depth: Floats
    per_token_s: float
    is_flat: bool = False


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of the step that is being planned.

    run_s: tokens added to the step (array) -> target seconds.
    propose: one entry for each drafter.
    excused_s: seconds that the step takes whatever is decided and whose worth is not decode
        tokens: the part of prefill.
    """

    run_s: Callable[[Ints], Floats]
    propose: tuple[ProposeCost, ...]
    excused_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """ks: [sequences]; depth: the largest k, free to choose, of a drafter whose depth costs time.

    goodput, baseline: expected committed tokens per second, as decided and with k = 0.
    offered_gain: goodput over `baseline` of the best plan, `required_return` aside; where nothing
        is better than drafting nothing, of one draft token deep.
    shadow_price: lambda = goodput * dT/dn, the survival that a draft position must exceed to be
    worth its token in the target's step (literature 7.2).
    """

    ks: Ints
    depth: int
    expected_tokens: float
    goodput: float
    baseline: float
    shadow_price: float
    offered_gain: float

    @property
    def gain(self) -> float:
        """Expected speed over that without speculation; at least 1."""
        return self.goodput / self.baseline


def decide(
    candidates: Candidates,
    fixed_ks: Ints,
    costs: StepCosts,
    required_return: float,
    last_depth: int,
) -> Decision:
    """Maximise (sequences + sum of survivals) / seconds over the number of draft tokens.

    The score is not unimodal where cost is a staircase: every budget is scored, and the global
    maximum taken. A batched draft runs as many steps as its deepest sequence, which the ranking
    does not know: it is repeated with the depth capped at each of DEPTHS.

    fixed_ks: [sequences], draft tokens that are drafted in any case, with max_k = 0 in
        `candidates`. `required_return`: expected tokens gained over tokens that their time would
        have given without them; below it nothing is drafted.
    """
    ranking = _Ranking(candidates, fixed_ks, costs)
    best = max((ranking.best(depth) for depth in ranking.depths), key=lambda plan: plan.goodput)
    kept = ranking.reaching(last_depth)
    if kept and kept.goodput >= KEEP_DEPTH * best.goodput:
        best = kept
    base, offer = ranking.nothing, best if best.budget else ranking.one_deep()
    extra_s = best.seconds - base.seconds
    if best.tokens - base.tokens < required_return * base.goodput * extra_s:
        best = base
    return ranking.decision(best, offer)


@dataclass(frozen=True, slots=True)
class _Plan:
    depth: int
    budget: int
    tokens: float
    seconds: float

    @property
    def goodput(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


class _Ranking:
    """All positions, the likeliest first, and the score of every prefix of that order."""

    def __init__(self, candidates: Candidates, fixed_ks: Ints, costs: StepCosts) -> None:
        self._costs = costs
        self._fixed_ks = fixed_ks
        self._drafter = candidates.drafter
        rows, columns = candidates.survival.shape
        valid = np.arange(columns) < candidates.max_k[:, None]
        valid &= candidates.survival >= MIN_SURVIVAL
        flat = np.flatnonzero(valid)
        # A row's survivals fall, so that what is chosen of it is a prefix.
        order = flat[np.argsort(-candidates.survival.reshape(-1)[flat])]
        self._row, column = order // max(columns, 1), order % max(columns, 1) + 1
        is_flat = np.array([cost.is_flat for cost in costs.propose] + [True])[candidates.drafter]
        # Only where depth costs time does it have to be chosen.
        self._depth = np.where(is_flat[self._row], 0, column)
        self._survival = candidates.survival.reshape(-1)[order]
        self._base_tokens = float(rows)
        num_costs = len(order) + 1 + SLOPE_TOKENS
        self._run_s = costs.run_s(np.arange(num_costs) + int(fixed_ks.sum()))
        deepest = int(self._depth.max(initial=0))
        self.depths = [0, *(d for d in DEPTHS if d < deepest), deepest]
        seconds = float(self._run_s[0]) - costs.excused_s + self._fixed_s()
        self.nothing = _Plan(0, 0, self._base_tokens, seconds)

    def reaching(self, depth: int) -> _Plan | None:
        """The best budget that goes as deep as `depth`, if that can be reached."""
        reached = np.flatnonzero(self._depth[self._depth <= depth] == depth) if depth else ()
        return self.best(depth, int(reached[0]) + 1) if len(reached) else None

    def one_deep(self) -> _Plan:
        """The best plan of one draft token for a sequence that drafts; nothing where none may."""
        return self.best(1, 1) if (self._depth <= 1).any() else self.nothing

    def best(self, depth: int, min_budget: int = 0) -> _Plan:
        """The best budget with no k deeper than `depth` where depth costs time."""
        allowed = self._depth <= depth
        gained = np.cumsum(self._survival[allowed])
        tokens = self._base_tokens + np.concatenate(([0.0], gained))
        seconds = self._run_s[: len(tokens)] - self._costs.excused_s
        seconds = seconds + self._propose_s(self._row[allowed], self._depth[allowed])
        scores = tokens / np.maximum(seconds, 1e-9)
        budget = min_budget + int(np.argmax(scores[min_budget:]))
        return _Plan(depth, budget, float(tokens[budget]), float(seconds[budget]))

    def _fixed_s(self) -> float:
        """Seconds waited for the draft tokens that are drafted in any case."""
        return float(self._propose_s(self._row[:0], self._depth[:0])[0])

    def _propose_s(self, row: Ints, depth: Ints) -> Floats:
        """Seconds waited for all drafters, for every budget 0..len(row)."""
        total = np.zeros(len(row) + 1)
        drafter = self._drafter[row]
        for index, cost in enumerate(self._costs.propose):
            mine = drafter == index
            fixed = self._fixed_ks[self._drafter == index]
            deep = 1 if cost.is_flat else depth
            depths = np.concatenate(([fixed.max(initial=0)], np.where(mine, deep, 0)))
            total += cost.by_depth[np.maximum.accumulate(depths)]
            if cost.per_token_s > 0:
                total += cost.per_token_s * np.concatenate(([fixed.sum()], mine)).cumsum()
        return total

    def decision(self, plan: _Plan, offer: _Plan) -> Decision:
        allowed = np.flatnonzero(self._depth <= plan.depth)[: plan.budget]
        ks = np.bincount(self._row[allowed], minlength=len(self._fixed_ks))
        return Decision(
            ks=ks + self._fixed_ks,
            depth=int(self._depth[allowed].max(initial=0)),
            expected_tokens=plan.tokens - self._base_tokens,
            goodput=plan.goodput,
            baseline=self.nothing.goodput,
            shadow_price=plan.goodput * self._slope(plan.budget),
            offered_gain=offer.goodput / self.nothing.goodput,
        )

    def _slope(self, budget: int) -> float:
        """dT/dn around the chosen budget, over a few tokens: a staircase has no derivative."""
        low, high = max(0, budget - SLOPE_TOKENS), budget + SLOPE_TOKENS
        return float(self._run_s[high] - self._run_s[low]) / (high - low)
