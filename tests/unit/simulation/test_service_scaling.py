"""Replicas that come and go in virtual time: in time, back again, and not to and fro."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.costs import DraftTime, Machine
from specdec.simulation.service.admission import Limits
from specdec.simulation.service.arrivals import poisson, ramp
from specdec.simulation.service.drafts import DraftReplica, Outage
from specdec.simulation.service.events import Events
from specdec.simulation.service.scaling import Delays, Group, Scaling
from tests.unit.simulation.simulated import request
from tests.unit.simulation.steady_service import Steady, record, service

STEP_S = 0.2
NUM_TOKENS = 20
START_UP_S = 10.0
QUICK = Delays(5.0, 20.0)


class Slow(Machine):
    """200 ms for every step of the target, 40 ms for each of the draft: few are to be computed."""

    def __init__(self) -> None:
        super().__init__({"draft": DraftTime(0.04), "ngram": DraftTime()}, 0.0)

    def run_many_s(self, num_tokens, num_kv_tokens):
        return np.full(np.shape(num_tokens), STEP_S)


def scaled(arrivals, max_targets, max_drafts, **changes):
    """A target takes 8 sequences of 20 tokens: without speculation, 2 requests a second."""
    scaling = Scaling(max_targets, max_drafts, START_UP_S, QUICK, QUICK)
    values = {
        "cost": Slow(),
        "num_drafts": 1,
        "limits": Limits(max_num_sequences=8),
        "scaling": scaling,
    }
    return service([request(1, draft=[4] * NUM_TOKENS)], arrivals, **(values | changes))


def counts(found) -> list[tuple[float, int, int]]:
    """(second, targets, drafts) at each change."""
    seen = [(each.time_s, each.num_targets, each.num_drafts) for each in found.scaled]
    return [seen[0], *(after for before, after in pairwise(seen) if after[1:] != before[1:])]


def test_targets_come_with_the_load_and_go_with_it():
    corners = [0.5, 4.5, 4.5, 0.5, 0.5]
    found = record(scaled(ramp(corners, 400.0), 4, 1), "off", until_s=400.0)
    series = {int(each.time_s): each.num_targets for each in found.scaled}
    assert series[0] == 1
    assert series[200] >= 3  # 4.5 a second are 2.25 full targets: three at 0.8 or less
    assert series[399] < series[200]
    assert max(series.values()) <= 4
    # Nobody waits for long but while the ramp climbs faster than replicas start.
    late = [wait_s for wait_s in found.ttft_s if wait_s > 2 * START_UP_S]
    assert not late


def test_a_steady_load_settles_and_stays():
    found = record(scaled(poisson(3.5), 6, 1), "off", until_s=250.0)
    settled = [each for each in found.scaled if each.time_s > 150]
    # 3.5 a second are 1.75 full targets, three at 0.8 each; a fourth is let go in its time.
    assert {each.num_targets for each in settled} <= {3, 4}
    assert settled[-1].num_target_changes - settled[0].num_target_changes <= 1
    assert settled[-1].num_target_changes <= 4


def test_a_new_replica_serves_after_its_start():
    found = record(scaled(poisson(4.5), 4, 1), "off", until_s=60.0)
    first_change = next(each.time_s for each in found.scaled if each.num_target_changes)
    first_more = next(each.time_s for each in found.scaled if each.num_targets > 1)
    assert first_change >= QUICK.up_s
    assert first_more - first_change == pytest.approx(START_UP_S, abs=1.5)


def test_a_target_that_leaves_finishes_what_it_has():
    arrivals = ramp([4.0, 4.0, 0.0, 0.0, 0.0], 250.0)
    found = record(scaled(arrivals, 3, 1), "off", until_s=250.0)
    assert [targets for _, targets, _ in counts(found)][-1] == 1
    assert found.num_finished == found.num_arrived
    assert found.totals.num_committed == NUM_TOKENS * found.num_finished


def test_drafts_come_where_their_time_has_a_price_and_go_without_load():
    arrivals = ramp([3.0, 3.0, 3.0, 0.2, 0.2], 300.0)
    of = scaled(arrivals, 3, 4, num_targets=3, limits=Limits(max_num_sequences=8))
    found = record(of, "adaptive", until_s=300.0)
    series = {int(each.time_s): each.num_drafts for each in found.scaled}
    assert series[0] == 1
    assert max(series.values()) > 1
    assert series[299] == 1
    assert found.scaled[-1].num_draft_changes <= 6


def test_drafts_that_bring_nothing_are_not_added():
    useless = [request(1, draft=[0] * NUM_TOKENS)]
    of = replace(scaled(poisson(2.5), 3, 4, num_targets=3), requests=useless)
    found = record(of, "adaptive", until_s=100.0)
    assert found.num_finished > 0
    assert max(each.num_drafts for each in found.scaled) == 1


def test_an_outage_while_drafts_scale_costs_no_token():
    outages = ((0, Outage(40.0, 70.0)),)
    arrivals = ramp([3.0, 3.0, 3.0, 0.0], 150.0)
    of = scaled(arrivals, 3, 4, num_targets=3, outages=outages)
    found = record(of, "adaptive", until_s=170.0)
    assert found.num_finished == found.num_arrived
    assert found.totals.num_committed == NUM_TOKENS * found.num_finished


def test_what_starts_goes_before_what_serves():
    events, serving = Events(), []
    made: list[int] = []

    def make(number: int) -> DraftReplica:
        made.append(number)
        return DraftReplica(events, Steady())

    group = Group(events, serving, make, (0, 3), Delays(0.0, 0.0), 10.0)
    group.scale(2)
    events.run(10.5)
    group.scale(3)
    events.run(15.0)
    assert (len(serving), group.count) == (2, 3)
    group.scale(1)  # the one that starts, then the newer of two
    events.run(40.0)
    assert (len(serving), group.count, made) == (1, 1, [0, 1])
    assert serving[0] is not group.leaving[0]


def test_the_gpu_time_counts_what_starts_and_what_leaves():
    quiet = record(scaled(poisson(0.5), 4, 1), "off", until_s=50.0)
    assert sum(each.cost_s for each in quiet.scaled) == pytest.approx(2 * 50.0, rel=0.03)
    busy = record(scaled(poisson(4.5), 4, 1), "off", until_s=50.0)
    served = sum(each.num_targets + each.num_drafts for each in busy.scaled)
    assert sum(each.cost_s for each in busy.scaled) >= served + 0.9 * START_UP_S


def test_bounds_and_loads_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="max_targets must be at least the 3"):
        scaled(poisson(1.0), 2, 1, num_targets=3)
    with pytest.raises(ConfigError, match="max_drafts must be at least the 1"):
        scaled(poisson(1.0), 2, 0)
    with pytest.raises(ConfigError, match="needs arrivals"):
        scaled(4, 2, 1)
    with pytest.raises(ConfigError, match="only a draft model runs apart"):
        scaled(poisson(1.0), 2, 1, drafters=("ngram",), num_drafts=0)
