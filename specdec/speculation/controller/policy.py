"""How many draft tokens each sequence gets: survival ranking against the cost of the step.

A pure function of estimates. One budget for the batch, spent where a draft token is likeliest to
be of use (DSpark 2607.05147; notation of design section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SORT_RESOLUTION = 65535.0
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
    max_s: drafting may not make the step longer than this; a step that is so without drafts
        drafts nothing.
    """

    run_s: Callable[[Ints], Floats]
    propose: tuple[ProposeCost, ...]
    excused_s: float
    max_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Decision:
    """ks: [sequences]; depth: the largest k that was allowed where depth costs time, 0 where
    nothing is drafted.

    goodput, baseline: expected committed tokens per second, as decided and with k = 0.
    offered_gain: goodput over `baseline` of the best plan, `required_return` aside; where nothing
        is better than drafting nothing, of one draft token deep.
    shadow_price: lambda = goodput * dT/dn, the survival that a draft position must exceed to be
    worth its token in the target's step. regret: the share of goodput that keeping
    the depth gives up.
    """

    ks: Ints
    depth: int
    expected_tokens: float
    goodput: float
    baseline: float
    shadow_price: float
    offered_gain: float
    regret: float = 0.0

    @property
    def gain(self) -> float:
        """Expected speed over that without speculation; at least 1."""
        return self.goodput / self.baseline


def decide(
    candidates: Candidates,
    fixed_ks: Ints,
    costs: StepCosts,
    required_return: float,
    keep_depth: int | None,
    scan: bool = True,
) -> Decision:
    """Maximise (sequences + sum of survivals) / seconds over the number of draft tokens.

    The score is not unimodal where cost is a staircase: every budget is scored, and the global
    maximum taken. A batched draft runs as many steps as its deepest sequence, which the ranking
    does not know: it is repeated with the depth capped at each of DEPTHS.

    fixed_ks: [sequences], draft tokens that are drafted in any case, with max_k = 0 in
        `candidates`. `required_return`: expected tokens gained over tokens that their time would
        have given without them; below it nothing is drafted. `keep_depth`: go as deep as this, if
        anything is drafted; None chooses freely. `scan`: whether to look at every depth, or, where
        one is kept, at its neighbours only.
    """
    near = None if scan or keep_depth is None else keep_depth + 1
    ranking = _Ranking(candidates, fixed_ks, costs, near)
    best, regret = ranking.best(keep_depth)
    base, offer = ranking.nothing, best if len(best.chosen) else ranking.one_deep()
    extra_s = best.seconds - base.seconds
    if best.tokens - base.tokens < required_return * base.goodput * extra_s:
        best = base
    return ranking.decision(best, offer, regret)


@dataclass(frozen=True, slots=True)
class _Plan:
    """chosen: indices of positions in the ranking. ks: [sequences], fixed ones included."""

    depth: int
    chosen: Ints
    ks: Ints
    tokens: float
    seconds: float

    @property
    def goodput(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


class _Ranking:
    """All positions, the likeliest first, and the score of every prefix of that order."""

    def __init__(
        self, candidates: Candidates, fixed_ks: Ints, costs: StepCosts, max_depth: int | None
    ) -> None:
        """`max_depth`: how deep to look where depth costs time."""
        self._costs = costs
        self._fixed_ks = fixed_ks
        self._drafter = candidates.drafter
        self._max_depth = max_depth
        is_flat = np.array([*(cost.is_flat for cost in costs.propose), True])[self._drafter]
        rows, columns = candidates.survival.shape
        survival = candidates.survival.reshape(-1)
        limit = candidates.max_k
        if max_depth is not None:
            limit = np.where(is_flat, limit, np.minimum(limit, max_depth))
        valid = np.arange(columns) < limit[:, None]
        flat = np.flatnonzero(valid.reshape(-1) & (survival >= MIN_SURVIVAL))
        # Sorting 16-bit keys is several times faster. Stable: a row's survivals fall, and what is
        # chosen of it stays a prefix.
        keys = (SORT_RESOLUTION * (1.0 - survival[flat])).astype(np.uint16)
        order = flat[np.argsort(keys, kind="stable")]
        self._survival = survival[order]
        self._row = order // max(columns, 1)
        self._base_tokens = float(rows)
        num_costs = len(order) + 1 + SLOPE_TOKENS
        self._run_s = costs.run_s(np.arange(num_costs) + int(fixed_ks.sum()))
        self._price_depth(order % max(columns, 1) + 1, is_flat)
        self.nothing = self._plan(0, self._row[:0])

    def _price_depth(self, positions: Ints, is_flat: NDArray[np.bool_]) -> None:
        """Only where depth costs time does it have to be chosen: elsewhere it counts as 0."""
        propose = self._costs.propose
        self._depth = np.where(is_flat[self._row], 0, positions).astype(np.int16)
        per_token_s = np.array([*(cost.per_token_s for cost in propose), 0.0])
        self._token_s = per_token_s[self._drafter][self._row] if per_token_s.any() else None
        self._drafts = set(self._drafter[self._row].tolist())

    def best(self, keep_depth: int | None) -> tuple[_Plan, float]:
        """The plan of the highest score, over every depth (unless one is to be kept) and every
        number of draft tokens; and the share of the best score that keeping the depth gives up."""
        if not len(self._row):
            return self.nothing, 0.0
        depths = self._depths()
        deepest = depths[-1]
        scores = self._scores(np.array(depths, dtype=np.int16))
        by_depth = scores.max(axis=1)
        chosen = int(np.argmax(by_depth))
        best_score = by_depth[chosen]
        if keep_depth is not None and min(keep_depth, deepest) in depths:
            chosen = depths.index(min(keep_depth, deepest))
        plan = self._plan(depths[chosen], self._prefix(depths[chosen], scores[chosen]))
        if plan.goodput <= self.nothing.goodput:
            plan = self.nothing
        if best_score <= 0.0:  # no plan keeps the step short enough
            return plan, 0.0
        return plan, max(float(1.0 - plan.goodput / best_score), 0.0)

    def _depths(self) -> list[int]:
        """The depths to compare, the deepest that anything reaches last."""
        deepest = int(self._depth.max())
        if not deepest:
            return [0]
        first = 0 if self._max_depth is None else self._max_depth - 2
        return [0, *(d for d in DEPTHS if first <= d < deepest), deepest]

    def one_deep(self) -> _Plan:
        """The best plan of one draft token for a sequence that drafts; nothing where none may."""
        depth = np.array([min(1, int(self._depth.max(initial=0)))], dtype=np.int16)
        if not (self._depth <= depth).any():
            return self.nothing
        return self._plan(int(depth[0]), self._prefix(int(depth[0]), self._scores(depth)[0]))

    def _prefix(self, depth: int, scores: Floats) -> Ints:
        """The positions up to the highest score, of those that `depth` allows."""
        return np.flatnonzero(self._depth[: int(np.argmax(scores)) + 1] <= depth)

    def _scores(self, depths: NDArray[np.int16]) -> Floats:
        """[depths, positions]: tokens per second with all positions so far in the ranking that the
        depth allows. Drafters are charged as if each went as deep as it may."""
        allowed = self._depth <= depths[:, None]
        tokens = self._base_tokens + np.cumsum(np.where(allowed, self._survival, 0.0), axis=1)
        seconds = self._run_s[np.cumsum(allowed, axis=1)] - self._costs.excused_s
        seconds += np.array([self._depth_s(depth) for depth in depths.tolist()])[:, None]
        if self._token_s is not None:
            seconds += np.cumsum(np.where(allowed, self._token_s, 0.0), axis=1)
        scores: Floats = tokens / np.maximum(seconds, 1e-9)
        scores[~allowed | (seconds > self._costs.max_s - self._costs.excused_s)] = 0.0
        return scores

    def _depth_s(self, depth: int) -> float:
        """Seconds waited for all drafters, if each that may draft goes as deep as `depth`."""
        total = 0.0
        for index, cost in enumerate(self._costs.propose):
            fixed = int(self._fixed_ks[self._drafter == index].max(initial=0))
            free = (1 if cost.is_flat else depth) if index in self._drafts else 0
            total += float(cost.by_depth[max(fixed, free)])
        return total

    def _plan(self, depth: int, chosen: Ints) -> _Plan:
        """The plan of these positions, its seconds as deep as they really go."""
        ks = self._fixed_ks + np.bincount(self._row[chosen], minlength=len(self._fixed_ks))
        seconds = float(self._run_s[len(chosen)]) - self._costs.excused_s
        for index, cost in enumerate(self._costs.propose):
            mine = ks[self._drafter == index]
            seconds += float(cost.by_depth[mine.max(initial=0)]) + cost.per_token_s * mine.sum()
        tokens = self._base_tokens + float(self._survival[chosen].sum())
        return _Plan(depth, chosen, ks, tokens, seconds)

    def decision(self, plan: _Plan, offer: _Plan, regret: float) -> Decision:
        return Decision(
            ks=plan.ks,
            depth=plan.depth,
            expected_tokens=float(plan.tokens - self._base_tokens),
            goodput=float(plan.goodput),
            baseline=float(self.nothing.goodput),
            shadow_price=float(plan.goodput * self._slope(len(plan.chosen))),
            offered_gain=float(offer.goodput / self.nothing.goodput),
            regret=float(regret),
        )

    def _slope(self, budget: int) -> float:
        """dT/dn around the chosen budget, over a few tokens: a staircase has no derivative."""
        low, high = max(0, budget - SLOPE_TOKENS), budget + SLOPE_TOKENS
        return float(self._run_s[high] - self._run_s[low]) / (high - low)
