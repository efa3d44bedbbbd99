"""Learned step times against the functions that produced them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec.speculation.controller.cost import CostModel, LatencyCurve, ProfilePoint


def run_curve() -> LatencyCurve:
    return LatencyCurve(0.04, starts_at_zero=False)


def test_one_measurement_and_the_prior_slope_predict_the_rest() -> None:
    curve = run_curve()
    curve.observe(1, 100, 0.1)
    assert float(curve.predict(1, 100)) == pytest.approx(0.1)
    assert float(curve.predict(6, 100)) == pytest.approx(0.12)


def test_staircase_is_learned_step_by_step() -> None:
    curve = run_curve()
    stairs = {n: 0.010 + 0.004 * ((n - 1) // 8) for n in range(1, 33)}
    for _ in range(200):
        for n, seconds in stairs.items():
            curve.observe(n, 0, seconds)
    predicted = curve.predict(list(stairs), 0)
    assert predicted == pytest.approx(list(stairs.values()), rel=0.02)


def test_both_slopes_are_found() -> None:
    rng = random.Random(1)
    curve = run_curve()
    for _ in range(400):
        n, kv = rng.randint(1, 30), rng.randint(0, 5000)
        curve.observe(n, kv, 0.02 + 0.001 * n + 4e-6 * kv)
    for n, kv in ((1, 0), (10, 5000), (60, 2000), (20, 8000)):
        assert float(curve.predict(n, kv)) == pytest.approx(0.02 + 0.001 * n + 4e-6 * kv, rel=0.05)


def test_noise_never_makes_more_work_take_less_time() -> None:
    rng = random.Random(2)
    curve = run_curve()
    for _ in range(60):
        curve.observe(rng.randint(1, 12), 0, rng.uniform(0.05, 0.1))
        assert (np.diff(curve.predict(np.arange(1, 16), 0)) >= -1e-12).all()


def test_first_measurements_are_their_minimum() -> None:
    curve = run_curve()
    for seconds in (0.5, 0.06, 0.07):
        curve.observe(1, 0, seconds)
    # The line still remembers the slow one, weighed down by the square of its time.
    assert float(curve.predict(1, 0)) == pytest.approx(0.06, rel=0.1)


def test_drift_moves_what_was_not_measured_again() -> None:
    curve = run_curve()
    for _ in range(30):
        curve.observe(1, 0, 0.06)
        curve.observe(5, 0, 0.07)
    for _ in range(60):  # another tenant came: everything takes half as long again
        curve.observe(5, 0, 0.105)
    assert float(curve.predict(5, 0)) == pytest.approx(0.105, rel=0.03)
    assert 0.075 < float(curve.predict(1, 0)) < 0.095


def test_long_prefill_steps_do_not_bend_the_short_ones() -> None:
    curve = run_curve()
    curve.observe(512, 512, 3.0)
    curve.observe(512, 1024, 3.1)
    for kv in range(600, 620):
        curve.observe(1, kv, 0.060)
    assert float(curve.predict(1, 610)) == pytest.approx(0.060, rel=0.03)


def test_profile_seeds_the_run_cost() -> None:
    points = [ProfilePoint(1, 0, 0.02), ProfilePoint(16, 0, 0.035)]
    assert float(CostModel(8, points).run_s(6, 0)) == pytest.approx(0.025, rel=0.05)


def test_draft_time_is_linear_in_depth_from_the_first_measurement() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    prior = cost.propose_s("draft", 2, 2)
    assert prior == pytest.approx(2 * 0.4 * 0.1)
    for _ in range(4):
        cost.observe_propose({"draft": (2, 2)}, 0.018)
    assert cost.propose_s("draft", 2, 2) == pytest.approx(0.018, rel=0.02)
    assert cost.propose_s("draft", 6, 6) == pytest.approx(0.054, rel=0.05)
    assert cost.propose_s("draft", 0, 0) == 0.0


def test_depth_is_charged_not_the_number_of_sequences() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    for _ in range(50):  # one sequence: depth and tokens are the same number
        for k in (1, 2, 3, 4):
            cost.observe_propose({"draft": (k, k)}, 0.010 * k + 0.001)
    assert cost.propose_s("draft", 4, 32) == pytest.approx(0.041, rel=0.2)


def test_lookup_is_free_and_the_draft_pays_for_the_wait_of_both() -> None:
    cost = CostModel(8)
    cost.observe_run(1, 0, 0.1)
    for _ in range(10):
        cost.observe_propose({"ngram": (4, 4)}, 1e-5)
    for _ in range(10):
        cost.observe_propose({"ngram": (4, 4), "draft": (2, 2)}, 0.020)
    assert cost.propose_s("draft", 2, 2) == pytest.approx(0.020, rel=0.05)
    assert cost.propose_s("ngram", 4, 4) < 1e-3
