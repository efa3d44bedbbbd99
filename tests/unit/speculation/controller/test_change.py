"""The change detector against the exact Markov chain of its sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.speculation.controller.change import (
    HOPED_ODDS,
    RARITY,
    SLACK,
    THRESHOLD,
    ChangeDetector,
    WakeDetector,
)

GRID = 0.02


def mean_steps_to_alarm(up: float, down: float, chance_up: float) -> float:
    """Expected steps from 0 until a sum that moves by `up` or `-down`, never below 0, reaches
    THRESHOLD: the solution of (I - P) t = 1 over the sums that are no alarm. All on a grid."""
    size, rise, fall = (round(x / GRID) for x in (THRESHOLD, up, down))
    states = np.arange(size)
    matrix = np.eye(size)
    matrix[states, np.maximum(states - fall, 0)] -= 1 - chance_up
    inside = states + rise < size
    matrix[states[inside], states[inside] + rise] -= chance_up
    return float(np.linalg.solve(matrix, np.ones(size))[0])


@pytest.mark.parametrize(("acceptance", "once_in"), [(0.5, 137e3), (0.7, 380e3), (0.8, 2.2e6)])
def test_false_alarms_are_as_rare_as_stated(acceptance: float, once_in: float) -> None:
    """Both directions together. What holds for 0.7 and 0.8 holds for 0.3 and 0.2, mirrored."""
    up = mean_steps_to_alarm(1 - acceptance - SLACK, acceptance + SLACK, acceptance)
    down = mean_steps_to_alarm(acceptance - SLACK, 1 - acceptance + SLACK, 1 - acceptance)
    assert 1 / (1 / up + 1 / down) == pytest.approx(once_in, rel=0.02)


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.1), (0.1, 0.8), (0.8, 0.5)])
def test_a_change_is_found_as_fast_as_the_chain_says(before: float, after: float) -> None:
    """What is believed stays at `before`; the mean over 400 seeded runs, and the rule of thumb
    THRESHOLD / (change - SLACK), which counts no overshoot."""
    drops = after < before
    chance = 1 - after if drops else after
    step = (before if drops else 1 - before) - SLACK
    exact = mean_steps_to_alarm(step, 1 - step, chance)
    assert exact == pytest.approx(THRESHOLD / (abs(before - after) - SLACK), rel=0.1)
    draws = np.random.default_rng(1)
    delays = []
    for _ in range(400):
        detector, steps = ChangeDetector(), 1
        while not detector.observe(float(draws.random() < after) - before, 1):
            steps += 1
        delays.append(steps)
    error = np.std(delays) / math.sqrt(len(delays))
    assert np.mean(delays) == pytest.approx(exact, abs=4 * error)


def test_no_alarm_in_a_run_of_the_stated_length_of_a_steady_drafter() -> None:
    """Eight sequences of acceptance 0.7 a step, 100,000 proposals."""
    draws = np.random.default_rng(2)
    detector = ChangeDetector()
    accepted = draws.binomial(8, 0.7, size=12_500)
    assert not any(detector.observe(float(a) - 0.7 * 8, 8) for a in accepted)


def test_a_batch_counts_as_its_proposals_and_an_alarm_starts_afresh() -> None:
    """Eight at once that fall short by 0.8 each: 8 (0.8 - 0.12) = 5.44 a step."""
    detector = ChangeDetector()
    assert [detector.observe(-6.4, 8) for _ in range(6)] == [False, True] * 3
    assert detector.num_changes == 3
    assert not detector.observe(+4.0, 8), "4 - 0.96 in the other direction"


def probes_to_wake(believed: float, true: float, runs: int) -> np.ndarray:
    draws = np.random.default_rng(5)
    counts = []
    for _ in range(runs):
        detector, probes = WakeDetector(), 1
        while not detector.observe(believed, bool(draws.random() < true)):
            probes += 1
        counts.append(probes)
    return np.array(counts)


@pytest.mark.parametrize("believed", [0.05, 0.2, 0.5])
def test_probes_that_go_as_believed_hardly_ever_wake(believed: float) -> None:
    """Lorden's bound, on the mean over seeded runs."""
    assert probes_to_wake(believed, believed, 80).mean() > RARITY


@pytest.mark.parametrize("believed", [0.1, 0.3, 0.45])
def test_better_times_are_noticed_at_the_rate_of_the_information(believed: float) -> None:
    """log(RARITY) over the mean gain of a probe at acceptance 0.8, by Wald's identity; the last
    one overshoots by less than one success."""
    spread = 1 - believed + HOPED_ODDS * believed
    success = math.log(HOPED_ODDS / spread)
    gain = 0.8 * success - 0.2 * math.log(spread)
    mean = probes_to_wake(believed, 0.8, 400).mean()
    # Starting anew at 0 after bad luck makes it faster where the gain is small.
    assert 0.75 * math.log(RARITY) / gain < mean < 1.1 * (math.log(RARITY) + success) / gain
