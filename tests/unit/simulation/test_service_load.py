"""Arrivals, latencies and windows against the laws that they are drawn from."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.policies import policy_setting
from specdec.simulation.service.arrivals import bursts, parse_arrivals, poisson
from specdec.simulation.service.events import Events
from specdec.simulation.service.network import Latency, parse_latency
from specdec.simulation.service.sampling import Sample, relative_se, run_sampled, windows
from tests.unit.simulation.simulated import request
from tests.unit.simulation.steady_service import Steady, record, service


def count(law, start_s, end_s, share=1.0):
    return len(list(law.times(start_s, end_s, np.random.default_rng(0), share)))


def test_arrivals_have_their_rate_when_it_is_due():
    assert count(poisson(50), 0, 100) == pytest.approx(5000, rel=0.05)
    assert count(poisson(50), 0, 100, 0.1) == pytest.approx(500, rel=0.15)
    law = bursts(10, 100, 10.0)
    times = np.array(list(law.times(0, 200, np.random.default_rng(1))))
    assert ((times % 10) < 2).sum() == pytest.approx(100 * 40, rel=0.06)
    assert ((times % 10) >= 2).sum() == pytest.approx(10 * 160, rel=0.08)
    rising = parse_arrivals("ramp:0:100:0", 60.0)
    assert count(rising, 0, 60) == pytest.approx(3000, rel=0.06)
    assert rising.rate(15.0) == pytest.approx(50)
    wave = parse_arrivals("day:10:30", 1.0)
    assert [wave.rate(h * 3600.0) for h in (4, 10, 16, 28)] == pytest.approx([10, 20, 30, 10])
    gaps = np.diff(list(poisson(20).times(0, 500, np.random.default_rng(2))))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "poisson", "poisson:-1", "poisson:x", "poisson:0", "bursts:1:2", "bursts:1:2:0", "ramp:1",
        "day:1", "waves:1", "poisson:nan", "poisson:inf",
    ],
)  # fmt: skip
def test_arrivals_that_cannot_be_are_refused(text):
    with pytest.raises(ConfigError, match="arrivals: "):
        parse_arrivals(text, 60.0)


def test_latencies_have_their_median_and_tail():
    law = parse_latency("lognormal:0.2:1.5")
    random = np.random.default_rng(0)
    values = [law.sample(random) for _ in range(40_000)]
    assert np.percentile(values, [50, 99]) == pytest.approx([2e-4, 1.5e-3], rel=0.05)
    assert parse_latency("constant:0.3").sample(random) == 3e-4
    for text in ("constant", "constant:-1", "lognormal:2:1", "lognormal:0:1", "fast:1"):
        with pytest.raises(ConfigError, match="network: "):
            parse_latency(text)


def test_windows_lie_in_their_strata_after_their_warm_up():
    found = windows(Sample(100.0, 4, 10.0, 5.0), seed=0)
    for number, window in enumerate(found):
        start = window.start_s + window.warm_up_s
        assert 25 * number <= start <= window.end_s - 10 + 1e-9 <= 25 * number + 15 + 1e-9
    with pytest.raises(ConfigError, match="do not fit"):
        windows(Sample(10.0, 4, 3.0, 0.0), 0)


def test_a_sample_estimates_the_whole_and_says_how_well():
    requests = [request(20, draft=[0] * 10)]
    of = service(requests, poisson(40.0), num_targets=8, cost=Steady(0.02))
    setting = policy_setting("off", ("draft",), 4)
    whole = run_sampled(of, setting, Sample(30.0, 1, 30.0, 1.0), 0)
    part = run_sampled(of, setting, Sample(60.0, 10, 3.0, 1.0), 0)
    assert (whole.num_targets, whole.standard_error) == (8, 0.0)
    assert (part.num_targets, part.fleet_size) == (4, 8)
    assert whole.goodput_tokens_per_s == pytest.approx(400, rel=0.05)
    # Poisson: 10 windows of 3 s with 20 requests a second are 600, so 1/sqrt(600) of error.
    assert part.standard_error == pytest.approx(1 / math.sqrt(600), rel=0.8)
    assert part.goodput_tokens_per_s == pytest.approx(400, rel=4 / math.sqrt(600))


def test_the_error_of_a_mean_leaves_out_what_strata_differ_by():
    random = np.random.default_rng(0)
    trend = np.linspace(100, 200, 50)
    means, errors = [], []
    for _ in range(200):
        values = trend + random.normal(0, 5, 50)
        means.append(values.mean())
        errors.append(relative_se(values.tolist()) * values.mean())
    # Neighbours differ by the trend's 2 as well, which adds to the noise's 2 * 25.
    assert np.mean(errors) == pytest.approx(math.sqrt((50 + 4.2) / 2 / 50), rel=0.05)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.15)
    assert math.isnan(relative_se([1.0]))


def test_every_policy_meets_the_same_arrivals():
    requests = [request(20, draft=[2] * 10)]
    of = service(requests, poisson(30.0), num_drafts=1, latency=Latency(1e-4, 1.0))
    first, second = (record(of, policy, until_s=20.0) for policy in ("off", "fixed:3"))
    assert first.num_arrived == second.num_arrived
    assert record(of, "off", until_s=20.0).ttft_s == first.ttft_s


def test_events_happen_in_order_and_ties_as_they_were_made():
    events, seen = Events(), []
    for name, time_s in zip("abcd", (0.2, 0.1, 0.2, 5.0), strict=True):
        events.at(time_s, lambda n=name: seen.append(n))
    events.at(0.1, lambda: events.after(0.05, lambda: seen.append("inner")))
    events.run(1.0)
    assert seen == ["b", "inner", "a", "c"]
    assert events.now_s == 1.0
    with pytest.raises(AssertionError, match="is past"):
        events.at(0.5, lambda: None)
    assert list(itertools.islice(seen, 1)) == ["b"]
