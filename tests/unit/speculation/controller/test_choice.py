"""Which drafter proposes: the better one at its own best K, and the other one again in time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import (
    BatchState,
    GoodputController,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.controller.choice import RETRY_AFTER, DrafterChooser, best_goodput

BOTH = ("draft", "ngram")
RUN_S, ROW_S, DRAFT_S = 0.050, 0.001, 0.020
MAX_K = 6


def test_best_goodput_is_leviathans_formula_at_the_best_k():
    ks = np.arange(9)
    survival = 0.8 ** np.arange(1, 9)
    run_s, propose_s = RUN_S + ROW_S * ks, DRAFT_S * ks
    speeds = [(1 - 0.8 ** (k + 1)) / (1 - 0.8) / (run_s[k] + propose_s[k]) for k in ks]
    assert best_goodput(survival, run_s, propose_s) == pytest.approx(max(speeds))
    assert best_goodput(0 * survival, run_s, propose_s) == pytest.approx(1 / RUN_S)


def test_the_loser_has_a_turn_after_so_many_choices():
    chooser = DrafterChooser()
    choices = [chooser.choose({"draft": 1.0, "ngram": 2.0}) for _ in range(4 * RETRY_AFTER)]
    turns = [index for index, name in enumerate(choices) if name == "draft"]
    assert turns == [RETRY_AFTER, 2 * RETRY_AFTER, 3 * RETRY_AFTER]


def test_of_equals_the_preferred_one_is_taken():
    assert DrafterChooser().choose({"draft": 2.0, "ngram": 2.0}) == "draft"


def drive(acceptance: dict[str, float], num_steps: int, batch: int = 1) -> Counter[str]:
    """Who was chosen in the second half of a simulated run in which both are always available."""
    controller = GoodputController(SpeculationConfig(max_num_speculative_tokens=MAX_K))
    draws = np.random.default_rng(1)
    chosen: Counter[str] = Counter()
    now_s = 0.0
    for step in range(num_steps):
        kv = 100 * batch
        names = [controller.choose_drafter(i, BOTH, MAX_K) for i in range(batch)]
        states = [SequenceState(i, 100, MAX_K, None, name) for i, name in enumerate(names)]
        ks = controller.plan(BatchState(states, 0, kv, now_s))
        if step >= num_steps // 2:
            chosen.update(names)
        results = []
        for index, (name, k) in enumerate(zip(names, ks, strict=True)):
            misses = np.flatnonzero(draws.random(k) >= acceptance[name])
            accepted = int(misses[0]) if len(misses) else k
            results.append(SequenceResult(index, name, k, k, accepted, accepted + 1, False))
        depth = max((k for name, k in zip(names, ks, strict=True) if name == "draft"), default=0)
        run_s = RUN_S + ROW_S * (sum(ks) + batch - 1)
        step_s = run_s + DRAFT_S * depth
        now_s += step_s
        controller.observe(
            StepResult(sum(ks) + batch, 0, kv, DRAFT_S * depth, run_s, step_s, results, now_s)
        )
    return chosen


@pytest.mark.parametrize(
    ("acceptance", "better"),
    [
        pytest.param({"draft": 0.92, "ngram": 0.2}, "draft", id="a good draft"),
        pytest.param({"draft": 0.6, "ngram": 0.7}, "ngram", id="a lookup that hits"),
    ],
)
def test_the_better_drafter_is_found(acceptance, better):
    chosen = drive(acceptance, 400)
    assert chosen[better] >= 0.85 * chosen.total()


def test_a_batch_shares_the_drafts_passes():
    """Eight sequences pay one deep draft between them: what loses alone, 34 against 36 tokens per
    second, wins together, 214 against 185."""
    acceptance = {"draft": 0.95, "ngram": 0.5}
    assert drive(acceptance, 600)["ngram"] > 150
    together = drive(acceptance, 200, batch=8)
    assert together["draft"] > 0.8 * together.total()


def test_before_anything_is_measured_the_preferred_one_proposes():
    controller = GoodputController(SpeculationConfig())
    assert controller.choose_drafter(1, BOTH, MAX_K) == "draft"
