"""The guard: trips on what is certainly slower, and on nothing else."""

from __future__ import annotations

import random

import pytest

from specdec.speculation.controller.guard import (
    COOL_DOWN_S,
    MAX_COOL_DOWN_S,
    MAX_WINDOWS,
    WINDOW_STEPS,
    Guard,
)


def feed(guard: Guard, now_s: float, ratio: float, steps: int, step_s: float = 0.1) -> float:
    for _ in range(steps):
        if guard.is_off(now_s):
            break
        now_s += step_s
        guard.observe(ratio * step_s, step_s, now_s)
    return now_s


def test_a_slower_window_trips_and_a_faster_one_does_not() -> None:
    for ratio, trips in ((1.3, 0), (0.99, 0), (0.97, 1), (0.5, 1)):
        guard = Guard()
        now_s = feed(guard, 0.0, ratio, WINDOW_STEPS)
        assert guard.num_trips == trips
        assert guard.is_off(now_s) == bool(trips)
        assert not guard.is_off(now_s + COOL_DOWN_S)


def test_short_steps_are_watched_for_seconds_not_only_for_fifty_steps() -> None:
    guard = Guard()
    feed(guard, 0.0, 0.5, 150, step_s=0.01)
    assert guard.num_trips == 0
    feed(guard, 1.5, 0.5, 60, step_s=0.01)
    assert guard.num_trips == 1


def test_cool_down_doubles_up_to_its_cap() -> None:
    guard, now_s = Guard(), 0.0
    offs = []
    for _ in range(9):
        now_s = feed(guard, now_s, 0.5, WINDOW_STEPS)
        off_from = now_s
        while guard.is_off(now_s):
            now_s += 0.5
        offs.append(now_s - off_from)
    assert offs[:3] == pytest.approx([COOL_DOWN_S, 2 * COOL_DOWN_S, 4 * COOL_DOWN_S])
    assert offs[-1] == pytest.approx(MAX_COOL_DOWN_S)


def test_chance_does_not_trip_but_a_small_steady_loss_does() -> None:
    """0 or 1 of one draft token accepted, true ratio 1.02: +-5 % in a window of 50."""
    trips = 0
    for seed in range(40):
        rng, guard, now_s = random.Random(seed), Guard(), 0.0
        for _ in range(10 * WINDOW_STEPS):
            now_s += 0.1
            guard.observe(0.1 * rng.choice([0.72, 1.32]), 0.1, now_s)
        trips += guard.num_trips > 0
    assert trips <= 4
    guard = Guard()
    now_s = 0.0
    rng = random.Random(1)
    for _ in range(4 * MAX_WINDOWS * WINDOW_STEPS):
        now_s += 0.1
        if not guard.is_off(now_s):
            guard.observe(0.1 * rng.choice([0.63, 1.23]), 0.1, now_s)
    assert guard.num_trips >= 1
