"""The oracle against every choice there is, on small batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specdec.simulation.closed_runs import ClosedScenario, compare, constant
from specdec.simulation.costs import Llama8B
from specdec.simulation.oracle import best_choice
from tests.unit.simulation.simulated import random_requests


class Steep(Llama8B):
    """A machine on which draft tokens cost much, and a stair makes two more of them free."""

    def run_s(self, num_tokens, num_kv_tokens):
        return 0.004 + 0.0011 * (num_tokens // 3)

    def run_many_s(self, num_tokens, num_kv_tokens):
        return 0.004 + 0.0011 * (num_tokens // 3)


def best_of_all(useful, cost, drafters, max_k):
    """The greatest goodput over every drafter and k of every row."""
    num_rows = useful.shape[1]
    options = [(d, k) for d in range(len(drafters)) for k in range(max_k + 1)]
    best = 0.0
    for picks in itertools.product(options, repeat=num_rows):
        asked, accepted, drafted = {}, 0, 0
        for row, (drafter, k) in enumerate(picks):
            accepted += min(k, int(useful[drafter, row]))
            drafted += k
            if k:
                depth, tokens = asked.get(drafters[drafter], (0, 0))
                asked[drafters[drafter]] = (max(depth, k), tokens + k)
        seconds = cost.run_s(num_rows + drafted, 100) + cost.propose_s(asked)
        best = max(best, (num_rows + accepted) / seconds)
    return best


@pytest.mark.parametrize("cost", [Llama8B(), Steep()], ids=["flat", "steep"])
@pytest.mark.parametrize("drafters", [("eagle",), ("ngram",), ("eagle", "ngram")])
def test_no_choice_is_better(cost, drafters):
    random = np.random.default_rng(4)
    for _ in range(6):
        useful = random.integers(0, 4, (len(drafters), 3))
        choice = best_choice(useful, [name != "ngram" for name in drafters], cost, drafters, 100)
        assert choice.goodput == pytest.approx(best_of_all(useful, cost, drafters, 3))
        accepted = np.minimum(choice.ks, useful[choice.drafter, np.arange(3)])
        assert (accepted == choice.ks).all()


@pytest.mark.parametrize("drafters", [("eagle",), ("ngram",), ("eagle", "ngram")])
def test_it_wastes_nothing_and_beats_every_fixed_k(drafters):
    scenario = ClosedScenario(
        random_requests(20, 5, *drafters), drafters, Llama8B(), constant(6, 300), 1, 6
    )
    oracle, *fixed = compare(scenario, ["oracle", *(f"fixed:{k}" for k in range(7))])
    assert oracle.total.acceptance_rate == 1.0
    assert all(oracle.speedup_vs_off > run.speedup_vs_off for run in fixed)
