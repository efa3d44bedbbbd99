"""Rates and percentiles of `specdec top`, against numpy and counts made by hand."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from specdec.cli.top_rates import History, latency_between, quantile, rates_between
from specdec.engine.histogram import LATENCY_EDGES, Histogram
from tests.exported_metrics import busy_target
from tests.unit.cli.readings import reading_of, two_readings


class TestQuantile:
    @pytest.mark.parametrize("q", [0.05, 0.25, 0.5, 0.75, 0.95, 1.0])
    def test_values_that_lie_evenly_in_their_buckets_give_numpys_percentile(self, q):
        """1000 values per bucket, so that both ways of drawing the line agree to a thousandth."""
        edges = [1.0, 2.0, 4.0, 8.0]
        lows = [0.0, *edges[:-1]]
        values = np.concatenate(
            [
                low + (high - low) * (np.arange(1000) + 0.5) / 1000
                for low, high in zip(lows, edges, strict=True)
            ]
        )
        assert quantile(edges, [1000] * 4 + [0], q) == pytest.approx(
            np.quantile(values, q), abs=0.01
        )

    def test_any_values_give_a_percentile_within_the_bucket_of_numpys(self):
        values = np.random.default_rng(3).lognormal(-3, 1.5, 2000)
        histogram = Histogram()
        for value in values:
            histogram.observe(float(value))
        bounds = np.array([0.0, *LATENCY_EDGES])
        for q in (0.5, 0.95, 0.99):
            exact = np.quantile(values, q, method="inverted_cdf")
            index = int(np.searchsorted(bounds, exact))
            found = quantile(LATENCY_EDGES, histogram.counts, q)
            assert bounds[index - 1] <= found <= bounds[index]

    @pytest.mark.parametrize(
        ("counts", "q", "expected"),
        [
            ([0, 0, 0], 0.5, None),
            ([4, 0, 0], 0.5, 0.5),  # half way from 0 to the first edge
            ([0, 4, 0], 0.25, 1.25),
            ([0, 0, 3], 0.5, 2.0),  # above every edge: no more is known
            ([1, 0, 1], 0.5, 1.0),
            ([1, 0, 1], 0.51, 2.0),
            ([1, 1, 0], 1.0, 2.0),
        ],
    )
    def test_by_hand(self, counts, q, expected):
        assert quantile([1.0, 2.0], counts, q) == expected

    def test_only_what_came_in_between_counts(self):
        edges = [1.0, 2.0]
        old = {"edges_s": edges, "counts": [100, 0, 5]}
        new = {"edges_s": edges, "counts": [100, 4, 5]}
        found = latency_between(old, new)
        assert (found.count, found.p50_s, found.p95_s) == (4, 1.5, 1.95)


def test_rates_are_what_happened_over_the_time_it_took():
    rates = rates_between(*two_readings(seconds=2.0))
    assert rates.seconds == 2.0
    assert rates.requests_per_s == 2.0
    assert rates.generation_tokens_per_s == (9 + 5 + 3) / 2
    assert rates.draft_tokens_per_s == 20 / 2
    assert rates.acceptance == 9 / 20
    assert rates.mean_acceptance_length == 1 + 9 / 5
    assert rates.tokens_per_step == 17 / 8
    assert rates.acceptance_by_position == [4 / 5, 3 / 5, 1 / 5, 1 / 5]
    assert rates.latency["time_to_first_token"].count == 4
    assert 0.025 <= rates.latency["time_to_first_token"].p50_s <= 0.05
    assert rates.latency["inter_token_latency"].p50_s is None
    assert set(rates.guard_trips.values()) == {0}


def test_each_class_has_its_k():
    rates = rates_between(*two_readings())
    red, blue = rates.classes["red"], rates.classes["blue"]
    assert (red.mean_k, red.acceptance, red.generation_tokens_per_s) == (4.0, 9 / 20, 7.0)
    assert (blue.mean_k, blue.acceptance, blue.generation_tokens_per_s) == (0.0, None, 1.5)


def test_the_speed_up_is_estimated_over_measured_time():
    before, after = two_readings()
    for name, grown in (("baseline_s", 3.0), ("speculating_s", 2.0)):
        after["totals"][name] = before["totals"][name] + grown
    assert rates_between(before, after).speed_up == pytest.approx(1.5)


def test_where_nothing_happened_ratios_are_unknown_and_rates_are_zero():
    before, _ = two_readings()
    after = {**deepcopy(before), "time_s": before["time_s"] + 1}
    rates = rates_between(before, after)
    assert rates.generation_tokens_per_s == 0
    assert rates.acceptance is rates.tokens_per_step is rates.mean_acceptance_length is None
    assert rates.speed_up is None
    assert set(rates.acceptance_by_position) == {None}


class TestHistory:
    def readings(self, number: int, period_s: float = 1.0) -> list[dict]:
        """Each with ten tokens more than the one before."""
        target = busy_target()
        found = []
        for step in range(number):
            found.append(reading_of(1000.0 + step * period_s, target))
            target.stats.counters.num_generation_tokens += 10
        return found

    def test_one_reading_has_no_rates(self):
        history = History()
        history.add(self.readings(1)[0])
        assert history.rates() is None

    @pytest.mark.parametrize(("period_s", "expected_s"), [(1.0, 10.0), (4.0, 12.0), (30.0, 30.0)])
    def test_the_window_is_ten_seconds_or_the_least_that_covers_them(self, period_s, expected_s):
        history = History()
        for reading in self.readings(20, period_s):
            history.add(reading)
        assert history.rates().seconds == expected_s
        assert history.rates().generation_tokens_per_s == 10 / period_s

    def test_the_same_reading_twice_is_one(self):
        history = History()
        first, second = self.readings(2)
        for reading in (first, first, second, second, first):
            history.add(reading)
        assert len(history.readings) == 2
        assert list(history.generation_tokens_per_s) == [10.0]

    def test_totals_that_fell_begin_a_new_window(self):
        history = History()
        *before, anew = self.readings(6)
        for reading in before[3:]:
            history.add(reading)
        restarted = {**before[0], "time_s": anew["time_s"]}
        history.add(restarted)
        assert history.rates() is None
        history.add({**before[1], "time_s": anew["time_s"] + 1})
        assert history.rates().generation_tokens_per_s == 10.0
        assert min(history.generation_tokens_per_s) >= 0

    def test_a_clock_that_was_set_back_begins_a_new_window(self):
        history = History()
        first, second, third = self.readings(3)
        for reading in (first, second, {**third, "time_s": third["time_s"] - 3600}):
            history.add(reading)
        assert list(history.readings) == [{**third, "time_s": third["time_s"] - 3600}]

    def test_a_class_that_pauses_leaves_a_gap(self):
        history = History()
        before, after = two_readings()
        history.add(before)
        history.add(after)
        history.add({**after, "time_s": after["time_s"] + 1})
        assert list(history.mean_k["red"]) == [4.0, None]
