"""What drift costs, against calculations by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specdec.simulation.drift_cost import Status, class_drifts
from specdec.simulation.retraining import verdict
from specdec.speculation.controller.drift import DAY_S, DriftSettings
from tests.unit.simulation.drift_logs import (
    HOUR_S,
    REFERENCE_HOURS,
    START_S,
    dropped,
    given_up,
    hour,
)

WEEK_S = 7 * DAY_S


def drifts_of(records, gpus: int = 1, settings: DriftSettings | None = None):
    return class_drifts(records, settings or DriftSettings(), WEEK_S, gpus)


def test_a_drop_at_the_same_k_by_hand():
    (drift,) = drifts_of(dropped(), gpus=4)
    assert drift.status is Status.DROPPED
    assert drift.then.first.rate == pytest.approx(0.8)
    assert drift.now.first.rate == pytest.approx(0.6)
    assert drift.now.days == 7
    assert drift.changed_s == START_S + REFERENCE_HOURS * HOUR_S
    cost = drift.at_least
    assert cost.tokens_then == pytest.approx(1 + 0.8 + 0.8 * 0.5)
    assert cost.tokens_now == pytest.approx(1 + 0.6 + 0.6 * 0.5)
    assert cost.steps == pytest.approx(24e6)
    assert cost.seconds_per_step == pytest.approx(0.001)
    assert cost.steps_needed == pytest.approx(24e6 * 1.9 / 2.2)
    # 24e6 * (1 - 1.9 / 2.2) = 3,272,727 steps of 1 ms on 4 GPUs.
    assert cost.gpu_hours == pytest.approx(24e6 * 0.3 / 2.2 * 0.001 * 4 / 3600)
    assert drift.at_most.gpu_hours == pytest.approx(cost.gpu_hours)


def test_a_draft_that_was_given_up_is_priced_between_two_bounds():
    (drift,) = drifts_of(given_up())
    # Today's 12e6 drafted steps a day at K = 1: 1.8 tokens each instead of 1.6.
    least = drift.at_least
    assert (least.tokens_then, least.tokens_now) == (pytest.approx(1.8), pytest.approx(1.6))
    assert least.gpu_hours == pytest.approx(12e6 * (1 - 1.6 / 1.8) * 0.0009 / 3600)
    # All 24e6 steps at K = 2 again: 2.2 tokens each instead of 1 + 0.5 * 0.6, of 0.85 ms.
    most = drift.at_most
    assert (most.tokens_then, most.tokens_now) == (pytest.approx(2.2), pytest.approx(1.3))
    assert most.gpu_hours == pytest.approx(24e6 * (1 - 1.3 / 2.2) * 0.00085 / 3600)
    # The second position was last tried then.
    second = drift.positions[1]
    assert (second.share_then, second.share_now) == (1.0, 0.0)
    assert (second.survival_then, second.survival_now) == (pytest.approx(0.4), pytest.approx(0.3))


def test_retraining_pays_back_after_its_hours_over_those_saved():
    drifts = drifts_of(dropped(), gpus=4)
    saved = 24e6 * 0.3 / 2.2 * 0.001 * 4 / 3600  # 3.636 GPU-hours per day
    paid = verdict("draft", drifts, retrain_gpu_hours=48, horizon_days=90)
    assert paid.gpu_hours_per_day == (pytest.approx(saved), pytest.approx(saved))
    assert paid.payback_days == (pytest.approx(13.2), pytest.approx(13.2))
    assert paid.text.startswith("retrain")
    late = verdict("draft", drifts, retrain_gpu_hours=48, horizon_days=13)
    assert late.text.startswith("do not retrain")
    assert verdict("draft", drifts, None, 90).payback_days is None


def test_where_the_bounds_disagree_the_verdict_is_open():
    # 0.3333 to 2.3182 GPU-hours per day: 48 hours are back after 20.7 to 144 days.
    between = verdict("draft", drifts_of(given_up()), retrain_gpu_hours=48, horizon_days=90)
    assert between.payback_days == (pytest.approx(48 / 2.318182), pytest.approx(144))
    assert between.text.startswith("open")


def test_classes_of_a_drafter_are_retrained_together():
    warm = [replace(record, label="temperature<=1.0") for record in dropped()]
    drifts = drifts_of(dropped() + warm, gpus=4)
    assert [drift.label for drift in drifts] == ["greedy", "temperature<=1.0"]
    both = verdict("draft", drifts, retrain_gpu_hours=48, horizon_days=90)
    assert both.payback_days == (pytest.approx(6.6), pytest.approx(6.6))


def test_a_draft_that_drops_where_it_is_not_used_never_pays_back():
    records = [hour(n, 10_000, (0.8,), 0.001) for n in range(REFERENCE_HOURS)]
    records += [hour(n, 10_000, (0.6,), 0.0) for n in range(REFERENCE_HOURS, 15 * 24)]
    drifts = drifts_of(records)  # steps that take no time cost none
    assert drifts[0].status is Status.DROPPED
    never = verdict("draft", drifts, retrain_gpu_hours=1, horizon_days=90)
    assert never.payback_days == (math.inf, math.inf)
    assert never.text.startswith("do not retrain")


def scattered(rates, trials: int = 5000, seed: int = 0):
    random = np.random.default_rng(seed)
    for number, rate in enumerate(rates):
        hourly = random.beta(rate * 400, (1 - rate) * 400)
        yield hour(number, trials, (random.binomial(trials, hourly) / trials,), 0.001)


def test_hours_that_scatter_are_no_drift():
    steady = 0
    for seed in range(20):
        (drift,) = drifts_of(scattered([0.7] * 360, seed=seed))
        steady += drift.status is Status.STEADY
        assert drift.at_least is None or drift.status is Status.DROPPED
    # One in a hundred lies outside of a 99 % interval: three of twenty would be 0.1 % likely.
    assert steady >= 18
    # A binomial law alone would take most of them for drift: hours scatter 13 times as much.
    assert drift.then.first.dispersion > 6


def test_a_rise_is_named_and_costs_nothing():
    rates = [0.6] * 200 + [0.7] * 400
    (drift,) = drifts_of(scattered(rates))
    assert drift.num_rises == 1
    assert drift.then.first.rate == pytest.approx(0.7, abs=0.02)
    assert drift.then.start_s >= START_S + 200 * HOUR_S
    slow = [0.6] * 169 + [0.62] * 191  # below what the detector calls a rise
    (risen,) = drifts_of(scattered(slow, trials=50_000))
    assert risen.status is Status.ROSE
    assert verdict("draft", [risen], 48, 90).text == "acceptance rose: nothing to do"


@pytest.mark.parametrize("hours", [1, 100, 170, 176])
def test_too_few_data_is_said(hours):
    (drift,) = drifts_of([hour(n, 1000, (0.7,), 0.001) for n in range(hours)])
    assert drift.status is Status.TOO_FEW_DATA
    assert verdict("draft", [drift], 48, 90).text.startswith("too few data")


def test_eight_blocks_after_the_reference_are_enough():
    (drift,) = drifts_of([hour(n, 1000, (0.7,), 0.001) for n in range(177)])
    assert drift.status is Status.STEADY
    assert verdict("draft", [drift], 48, 90).text == "no drift: nothing to do"


def test_lookup_has_nothing_to_retrain():
    records = [replace(record, drafter="ngram") for record in dropped()]
    result = verdict("ngram", drifts_of(records), retrain_gpu_hours=48, horizon_days=90)
    assert result.payback_days is None
    assert "nothing to retrain" in result.text


def test_replicas_that_share_the_traffic_count_together():
    (whole,) = drifts_of(dropped(1_000_000))
    (halves,) = drifts_of(dropped(500_000) + dropped(500_000))
    assert halves.at_least == whole.at_least
    assert halves.then.first.rate == whole.then.first.rate
