"""The decision against every choice of ks: lookups and models in one step, on random staircases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from specdec.speculation.controller.policy import (
    Candidates,
    Decision,
    ProposeCost,
    StepCosts,
    decide,
)

MAX_K = 3


@dataclass
class Step:
    """Sequences with survivals [rows, MAX_K], limits, fixed ks and a drafter each."""

    survival: np.ndarray
    max_k: np.ndarray
    fixed: np.ndarray
    drafter: np.ndarray
    propose: tuple[ProposeCost, ...]
    run_s: np.ndarray  # by draft tokens

    def decide(self, keep_depth: int | None = None, scan: bool = True) -> Decision:
        costs = StepCosts(lambda added: self.run_s[np.asarray(added)], self.propose, 0.0)
        candidates = Candidates(self.survival, self.max_k, self.drafter)
        return decide(candidates, self.fixed, costs, 0.0, keep_depth, scan)

    def goodput(self, ks: np.ndarray) -> np.ndarray:
        """[choices] for [choices, rows] of all draft tokens, fixed ones included. What a fixed k
        brings is the same for every choice, and counted by none."""
        free = ks - self.fixed
        gained = np.concatenate((np.zeros((len(self.max_k), 1)), self.survival), axis=1).cumsum(1)
        tokens = len(self.max_k) + gained[np.arange(len(self.max_k)), free].sum(axis=1)
        seconds = self.run_s[ks.sum(axis=1)].copy()
        for index, cost in enumerate(self.propose):
            mine = ks * (self.drafter == index)
            seconds += cost.by_depth[mine.max(axis=1)] + cost.per_token_s * mine.sum(axis=1)
        return tokens / seconds

    def best(self, depth: int | None = None) -> float:
        """Of every choice, or of those whose largest k, free to choose, of a model is `depth`."""
        ranges = [range(limit + 1) for limit in self.max_k]
        ks = np.array(list(itertools.product(*ranges))) + self.fixed
        goodput = self.goodput(ks)
        if depth is not None:
            is_flat = np.array([cost.is_flat for cost in self.propose])[self.drafter]
            deepest = np.where(is_flat, 0, ks - self.fixed).max(axis=1)
            goodput = goodput[deepest == depth]
        return float(goodput.max(initial=0.0))


def model(step_s: float, per_token_s: float = 0.0) -> ProposeCost:
    """0.05 s for the messages, whatever the depth."""
    by_depth = 0.05 * (np.arange(MAX_K + 2) > 0) + step_s * np.arange(MAX_K + 2)
    return ProposeCost(by_depth, per_token_s)


LOOKUP = ProposeCost(np.zeros(MAX_K + 2), 0.0, is_flat=True)
# Asking costs something, but not by depth.
SLOW_LOOKUP = ProposeCost(0.02 * (np.arange(MAX_K + 2) > 0), 0.0, is_flat=True)


def random_step(draws: np.random.Generator, drafters: tuple[ProposeCost, ...]) -> Step:
    rows = int(draws.integers(1, 5))
    drafter = draws.integers(0, len(drafters), rows)
    max_k = draws.integers(0, MAX_K + 1, rows)
    # No survival below the least that is drafted at all: 0.3^3 = 0.027.
    survival = np.cumprod(draws.uniform(0.3, 0.99, (rows, MAX_K)), axis=1)
    stairs = draws.choice([0.0, 0.01, 0.05, 0.4], size=MAX_K * rows + 8, p=[0.4, 0.3, 0.2, 0.1])
    fixed = np.where(draws.random(rows) < 0.15, 2, 0)
    max_k[fixed > 0] = 0
    return Step(survival, max_k, fixed, drafter, drafters, 1.0 + np.cumsum(stairs))


def shares(drafters_of, cases: int, seed: int) -> np.ndarray:
    """What decide reaches of the best choice; its own account must be right, too."""
    draws = np.random.default_rng(seed)
    result = []
    for _ in range(cases):
        step = random_step(draws, drafters_of(draws))
        decision = step.decide()
        reached = float(step.goodput(decision.ks[None])[0])
        assert abs(decision.goodput / reached - 1) < 1e-9
        assert (decision.ks >= step.fixed).all()
        assert (decision.ks - step.fixed <= step.max_k).all()
        result.append(reached / step.best())
    return np.array(result)


def test_with_one_model_and_lookup_no_choice_is_better() -> None:
    """Survivals are ranked to 16 bits: a tie closer than that may go either way."""
    reached = shares(lambda draws: (model(draws.uniform(0, 0.5)), LOOKUP), 300, seed=1)
    assert reached.min() >= 1 - 1e-4


def test_with_lookup_alone_no_choice_is_better() -> None:
    assert shares(lambda draws: (LOOKUP, LOOKUP), 150, seed=2).min() >= 1 - 1e-4


def test_two_models_and_costs_by_token_come_close() -> None:
    """The ranking knows one depth for all models, no price of a token at its drafter, and does not
    leave out a model that is asked for one likely token at a high price: not always the best."""
    reached = shares(
        lambda draws: (
            model(draws.uniform(0, 0.5), 0.02),
            model(draws.uniform(0, 0.5)),
            SLOW_LOOKUP,
        ),
        300,
        seed=3,
    )
    assert reached.mean() >= 0.99
    assert np.mean(reached >= 0.97) >= 0.93


def test_a_kept_depth_is_used_as_well_as_can_be_and_what_it_gives_up_is_told() -> None:
    draws = np.random.default_rng(4)
    kept = 0
    for _ in range(150):
        step = random_step(draws, (model(draws.uniform(0, 0.3)), LOOKUP))
        for depth in (1, 2, 3):
            decision = step.decide(keep_depth=depth)
            if decision.depth != depth or step.best() <= decision.baseline:
                continue
            kept += 1
            assert decision.goodput >= (1 - 1e-4) * step.best(depth)
            assert abs(decision.regret - (1 - decision.goodput / step.best())) < 1e-3
    assert kept > 100


def test_between_scans_the_neighbours_of_the_kept_depth_are_compared() -> None:
    """Best at depth 3, kept at 1: depth 2 is seen, 3 is not."""
    survival = np.cumprod(np.full((1, MAX_K), 0.95))[None]
    step = Step(
        survival,
        np.array([MAX_K]),
        np.zeros(1, int),
        np.zeros(1, int),
        (model(0.1),),
        np.ones(MAX_K + 8),
    )
    speeds = [step.best(depth) for depth in range(MAX_K + 1)]
    assert speeds == sorted(speeds)
    near, all_depths = step.decide(1, scan=False), step.decide(1, scan=True)
    assert near.depth == all_depths.depth == 1
    assert abs(near.regret - (1 - speeds[1] / speeds[2])) < 1e-9
    assert abs(all_depths.regret - (1 - speeds[1] / speeds[3])) < 1e-9
