"""Learned step times against the functions that produced them."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest

from specdec.speculation.controller.latency_curve import LatencyCurve
from specdec.speculation.controller.staircase import bucket_of, not_decreasing


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


def tiles(n):
    """Seconds of a kernel with tiles: flat to 320, then to 512, then to 640."""
    return 0.020 if n <= 320 else 0.030 if n <= 512 else 0.048


def test_buckets_end_where_tiles_end() -> None:
    assert [bucket_of(x) for x in (0, 1, 31, 32, 33, 36, 37)] == [0, 1, 31, 32, 33, 33, 34]
    assert bucket_of(289) == bucket_of(320) != bucket_of(321) == bucket_of(352)
    assert bucket_of(512) != bucket_of(513)
    numbers = [bucket_of(x) for x in range(1, 5000)]
    assert numbers == sorted(numbers)
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    assert steps == {0, 1}


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_tile_is_smeared_over_one_cell_at_most(noise) -> None:
    """Cells are 32 wide from 256 to 512 and 64 above. Where a step ends, the next cell begins, so
    that not even one token is on the wrong step; beyond the last cell's middle the line decides."""
    rng = random.Random(3)
    curve = run_curve()
    for _ in range(4000):
        n = rng.randint(200, 640)
        curve.observe(n, 0, tiles(n) * (1 + noise * rng.uniform(-1, 1)))
    for n in range(208, 600):
        assert curve.at(n, 0) == pytest.approx(tiles(n), rel=0.02), n


def test_a_slope_is_no_staircase() -> None:
    curve = run_curve()
    curve.seed([(n, 0, 0.010 + 0.0001 * n) for n in range(8, 641, 8)])
    for n in range(16, 632):
        assert curve.at(n, 0) == pytest.approx(0.010 + 0.0001 * n, rel=0.01), n


def test_a_measured_staircase_is_kept_while_one_place_is_used() -> None:
    """Hours at 300 tokens must not flatten what is known of 400."""
    curve = run_curve()
    curve.seed([(n, 0, tiles(n)) for n in range(8, 641, 8)])
    for _ in range(5000):
        curve.observe(300, 0, 0.020)
    for n in (64, 200, 320, 352, 400, 512, 576):
        assert curve.at(n, 0) == pytest.approx(tiles(n), rel=0.01), n
    assert curve.at(312, 0) - curve.at(300, 0) < 1e-6


def test_a_seed_that_is_wrong_by_three_is_corrected_by_drift() -> None:
    curve = run_curve()
    curve.seed([(n, 0, tiles(n) / 3) for n in range(8, 641, 8)])
    for _ in range(60):
        curve.observe(300, 0, 0.020)
    for n in (64, 300, 400, 576):
        assert curve.at(n, 0) == pytest.approx(tiles(n), rel=0.15), n


def test_padding_up_to_a_captured_size_is_free() -> None:
    """A step of 9 runs the graph of 16: it costs what 16 costs, and so do 10 to 16."""
    curve = run_curve()
    curve.pad_to((1, 2, 4, 8, 16))
    for _ in range(20):
        for n, seconds in ((1, 0.010), (3, 0.012), (7, 0.014), (9, 0.018), (17, 0.020)):
            curve.observe(n, 0, seconds)
    assert curve.predict(np.arange(9, 17), 0) == pytest.approx(np.full(8, 0.018), rel=1e-3)
    assert curve.predict([3, 4], 0) == pytest.approx([0.012, 0.012], rel=1e-3)
    assert curve.predict([5, 8], 0) == pytest.approx([0.014, 0.014], rel=1e-3)
    assert curve.at(17, 0) == pytest.approx(0.020, rel=1e-3)
    assert curve.at(19, 0) > 0.020  # beyond the largest graph every token counts
    assert [curve.at(n, 0) for n in range(1, 20)] == pytest.approx(
        curve.predict(np.arange(1, 20), 0).tolist()
    )


def test_isotonic_regression_is_the_least_squares_answer() -> None:
    """By hand: 3 and 1 of weights 1 and 3 pool to 1.5; 0 of infinite weight is never moved."""
    assert not_decreasing([0.0, 3.0, 1.0, 2.0], [float("inf"), 1, 3, 1]) == [0.0, 1.5, 1.5, 2.0]
    assert not_decreasing([0.0, -1.0, 2.0], [float("inf"), 1, 1]) == [0.0, 0.0, 2.0]


def test_a_step_of_learning_takes_microseconds() -> None:
    """The budget of the whole controller is 500 us; this is a tenth of it on a busy machine."""
    rng = random.Random(4)
    curve = run_curve()
    for _ in range(600):
        n = rng.randint(1, 600)
        curve.observe(n, 1000, tiles(n))
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        for n in range(200, 300):
            curve.observe(n, 1000, tiles(n))
            curve.at(n + 1, 1000)
        best = min(best, (time.perf_counter() - started) / 100)
    assert best < 50e-6
