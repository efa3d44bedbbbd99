"""The drift detector against exact chains, closed forms and simulated years."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from specdec.speculation.controller.drift import (
    DAY_S,
    Z95,
    Z99,
    DriftDetector,
    DriftSettings,
    RateCusum,
    RateEstimate,
    student_quantile,
)

HOUR_S = 3600.0
SETTINGS = DriftSettings()


# -- the bound on false alarms ------------------------------------------------------------------
# From 0.6 to 0.4 a success is worth -ln 1.5 of evidence and a failure +ln 1.5: evidence is a walk
# on a lattice, up with chance 0.4, down with 0.6, held at 0. Threshold: LEVELS steps.

LEVELS = 4


def lattice_cusum() -> RateCusum:
    return RateCusum(0.6, 0.4, dispersion=1.0, threshold=(LEVELS - 0.5) * math.log(1.5))


def chance_by_chain(num_trials: int) -> float:
    """Chance that the walk has reached the threshold, by multiplying out the chain."""
    step = np.zeros((LEVELS + 1, LEVELS + 1))
    for level in range(LEVELS):
        step[level, level + 1] = 0.4
        step[level, max(level - 1, 0)] += 0.6
    step[LEVELS, LEVELS] = 1.0
    return float(np.linalg.matrix_power(step, num_trials)[0, LEVELS])


def chance_by_running(num_trials: int) -> float:
    """The same, by feeding every sequence of outcomes to the detector."""
    chance = 0.0
    for outcomes in product((0, 1), repeat=num_trials):
        cusum, alarmed = lattice_cusum(), False
        for time, success in enumerate(outcomes):
            cusum.observe(float(time), 1, success)
            alarmed |= cusum.is_alarmed
        if alarmed:
            chance += math.prod(0.6 if success else 0.4 for success in outcomes)
    return chance


def test_the_detector_is_the_chain():
    assert chance_by_running(10) == pytest.approx(chance_by_chain(10), rel=1e-12)


def test_false_alarms_stay_below_the_stated_bound():
    # The threshold lies between two levels, so the evidence at an alarm is LEVELS * ln 1.5.
    per_start = math.exp(-LEVELS * math.log(1.5))
    for num_trials in (1, 4, 10, 50, 500):
        assert chance_by_chain(num_trials) <= num_trials * per_start


def test_the_mean_time_to_a_false_alarm_exceeds_lordens_bound():
    # m(i) = 1 + 0.4 m(i+1) + 0.6 m(i-1), m(0) = 1 + 0.4 m(1) + 0.6 m(0), m(LEVELS) = 0.
    matrix = np.eye(LEVELS)
    for level in range(LEVELS):
        if level + 1 < LEVELS:
            matrix[level, level + 1] -= 0.4
        matrix[level, max(level - 1, 0)] -= 0.6
    mean = np.linalg.solve(matrix, np.ones(LEVELS))[0]
    assert mean >= math.exp(LEVELS * math.log(1.5))


def test_the_threshold_follows_the_wished_chance():
    settings = DriftSettings(false_alarm_chance=0.01, horizon=8760)
    assert 2 * settings.horizon * math.exp(-settings.threshold) == pytest.approx(0.01)


@pytest.mark.parametrize("dispersion", [1.0, 3.0])
def test_runs_of_evidence_are_a_supermartingale_where_nothing_moved(dispersion):
    for rate in (0.6, 0.65, 0.9):  # the reference, and what lies further from the drop
        mean = 0.0
        for successes in range(8):
            cusum = RateCusum(0.6, 0.54, dispersion, threshold=100.0)
            up = (math.log(0.54 / 0.6), math.log(0.46 / 0.4))
            step = (successes * up[0] + (7 - successes) * up[1]) / dispersion
            chance = math.comb(7, successes) * rate**successes * (1 - rate) ** (7 - successes)
            mean += chance * math.exp(step)
            cusum.observe(0.0, 7, successes)
            assert cusum.evidence == pytest.approx(max(step, 0.0))
        assert mean <= 1 + 1e-12


# -- estimates ----------------------------------------------------------------------------------


def test_a_rate_and_its_spread_by_hand():
    estimate = RateEstimate()
    for successes in (60, 80, 70, 90):
        estimate.add(100, successes)
    assert estimate.rate == 0.75
    # Chi-square: (15^2 + 5^2 + 5^2 + 15^2) / (100 * 0.75 * 0.25) = 500 / 18.75, over 3.
    assert estimate.dispersion == pytest.approx(500 / 18.75 / 3)
    smoothed = 301 / 402
    error = math.sqrt(500 / 18.75 / 3 * smoothed * (1 - smoothed) / 400)
    low, high = estimate.interval()
    assert (high - low) / 2 == pytest.approx(student_quantile(Z95, 3) * error)
    assert (high + low) / 2 == pytest.approx(0.75)


def test_blocks_that_agree_are_taken_for_no_better_than_binomial():
    estimate = RateEstimate()
    for _ in range(10):
        estimate.add(100, 50)
    assert estimate.dispersion == 1.0
    always = RateEstimate()
    always.add(50, 50)
    assert 0 < always.standard_error < 0.03


def test_student_quantiles_agree_with_the_tables():
    tables = {(Z95, 7): 2.365, (Z95, 23): 2.069, (Z99, 7): 3.499, (Z99, 23): 2.807}
    for (z, freedom), value in tables.items():
        assert student_quantile(z, freedom) == pytest.approx(value, rel=0.012)


# -- whole detectors on simulated traffic -------------------------------------------------------


def hours(rates, seed: int, trials: int = 5000, alike: float = 400.0):
    """(start, trials, successes) per hour. Rates of hours scatter as Beta with weight `alike`."""
    random = np.random.default_rng(seed)
    rates = np.asarray(rates, dtype=np.float64)
    hourly = random.beta(rates * alike, (1 - rates) * alike)
    for hour, successes in enumerate(random.binomial(trials, hourly)):
        yield hour * HOUR_S, trials, int(successes)


def first_alarm(detector: DriftDetector, periods) -> float | None:
    """Hour of the first alarm, up or down."""
    for start_s, trials, successes in periods:
        detector.observe(start_s, trials, successes)
        if detector.has_dropped or detector.num_rises:
            return start_s / HOUR_S
    return None


def daily(level: float, swing: float, num_hours: int):
    return level * (1 + swing * np.sin(2 * np.pi * np.arange(num_hours) / 24))


def test_steady_traffic_alarms_no_more_often_than_allowed():
    settings = DriftSettings(false_alarm_chance=0.2, horizon=500)
    alarms = [first_alarm(DriftDetector(settings), hours([0.7] * 668, seed)) for seed in range(60)]
    # At most 0.2 each: more than 18 of 60 has a chance of 2.7 %, were it no better than the bound.
    assert sum(alarm is not None for alarm in alarms) <= 18


@pytest.mark.parametrize("swing", [0.05, 0.2])
def test_day_and_night_are_no_drift(swing):
    for seed in range(5):
        assert first_alarm(DriftDetector(), hours(daily(0.7, swing, 1500), seed)) is None


@pytest.mark.parametrize(("factor", "within"), [(0.9, 24), (0.8, 4), (0.5, 2)])
def test_a_drop_is_found_and_dated(factor, within):
    change = 500
    rates = daily(0.7, 0.03, 800)
    rates[change:] *= factor
    for seed in range(5):
        detector = DriftDetector()
        found = first_alarm(detector, hours(rates, seed))
        assert detector.has_dropped
        assert change <= found <= change + within
        assert abs(detector.changed_s / HOUR_S - change) <= 24


def test_a_slow_slide_shows_in_the_level_before_it_alarms():
    rates = np.concatenate([np.full(200, 0.7), np.linspace(0.7, 0.68, 700)])
    detector = DriftDetector()
    assert first_alarm(detector, hours(rates, 1)) is None
    # The last seven days' mean of the slide: 0.68 + 0.02 * (84 / 700), against 0.7.
    assert detector.relative_change == pytest.approx(0.6824 / 0.7 - 1, abs=0.006)


def test_a_rise_makes_a_reference_of_its_own_and_its_loss_is_a_drop():
    rates = np.concatenate([np.full(300, 0.5), np.full(400, 0.7), np.full(100, 0.55)])
    detector = DriftDetector()
    for period in hours(rates, 3):
        detector.observe(*period)
    assert detector.num_rises == 1
    assert detector.reference.rate == pytest.approx(0.7, abs=0.01)
    assert detector.has_dropped  # though 0.55 is above where it all began
    assert abs(detector.changed_s / HOUR_S - 700) <= 12


def test_a_level_that_comes_back_clears_the_alarm():
    rates = np.concatenate([np.full(300, 0.7), np.full(100, 0.5), np.full(200, 0.7)])
    detector = DriftDetector()
    seen = []
    for period in hours(rates, 4):
        detector.observe(*period)
        seen.append(detector.has_dropped)
    assert seen[399]
    assert not seen[-1]
    assert detector.changed_s is None


def test_it_learns_for_the_whole_reference_and_says_nothing_until_then():
    detector = DriftDetector()
    for period in hours([0.7] * 167 + [0.2], 5):
        detector.observe(*period)
        assert detector.relative_change is None
        assert not detector.has_dropped
    assert detector.reference_end_s is None


def test_little_traffic_is_gathered_into_blocks():
    detector = DriftDetector(DriftSettings(min_trials=200, min_blocks=24, reference_s=7 * DAY_S))
    periods = list(hours([0.7] * 2000, 6, trials=11))
    for period in periods:
        detector.observe(*period)
    # 19 hours make 209 trials: 24 blocks need 456 hours, and no block has fewer trials.
    assert detector.reference.num_blocks == 24
    assert detector.reference.trials == 24 * 209
    assert detector.reference_end_s == (24 * 19 - 1) * HOUR_S
    detector.observe(0.0, 0, 0)


def test_certain_outcomes_are_no_trouble():
    for rate in (0.0, 1.0):
        detector = DriftDetector()
        for hour in range(400):
            detector.observe(hour * HOUR_S, 500, round(500 * rate))
        assert not detector.has_dropped
        assert detector.num_rises == 0
