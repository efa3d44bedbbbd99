"""The scaling rules against counting by hand: what is wanted, where nothing changes, what is not
known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from specdec.speculation.scaling import (
    DraftReading,
    TargetReading,
    WaitedShare,
    speculation_of,
    wanted_drafts,
    wanted_targets,
)

CALM = TargetReading(
    usage=0.5, num_running=10, num_waiting=0, gain=1.0, price=0.0, waited=0.0, cost=1.0
)


def targets(count: int = 2, **changes: float) -> list[TargetReading]:
    return [replace(CALM, **changes)] * count


class TestTargets:
    @pytest.mark.parametrize(
        ("usage", "running", "wanted"),
        [
            (0.79, 2, 2),
            (0.81, 2, 3),  # 1.62 targets full of work: over 0.8 each
            (1.0, 4, 5),
            (0.31, 2, 2),  # one alone would have 0.62: not roomy enough
            (0.29, 2, 1),
            (0.1, 4, 1),
            (0.0, 2, 1),
        ],
    )
    def test_follow_how_full_they_are(self, usage, running, wanted):
        assert wanted_targets(targets(running, usage=usage), running, running) == wanted

    def test_what_waits_will_take_room_as_what_runs_does(self):
        # Ten run on 0.9 of a target; five more would take 0.45: 1.35 in all, 2 at 0.8 each.
        assert wanted_targets(targets(1, usage=0.9, num_waiting=5), 1, 1) == 2
        # Four such: 5.4, which are 7 at 0.8. Thirty for each would be 18, more than twice the four.
        assert wanted_targets(targets(4, usage=0.9, num_waiting=5), 4, 4) == 7
        assert wanted_targets(targets(4, usage=0.9, num_waiting=30), 4, 4) == 8

    def test_a_queue_that_grows_while_replicas_start_orders_no_more(self):
        assert wanted_targets(targets(1, usage=1.0, num_waiting=50), 1, 1) == 2
        assert wanted_targets(targets(1, usage=1.0, num_waiting=500), 1, 2) == 2

    def test_a_long_queue_calls_for_another_though_there_is_room(self):
        assert wanted_targets(targets(2, usage=0.2, num_waiting=4), 2, 2) == 2
        assert wanted_targets(targets(2, usage=0.2, num_waiting=5), 2, 2) == 3

    def test_what_is_starting_is_not_ordered_again(self):
        assert wanted_targets(targets(2, usage=0.2, num_waiting=5), 2, 3) == 3

    def test_a_queue_beside_a_target_without_one_orders_no_more(self):
        """What came while it started waits where it came to; what comes now need not wait."""
        old, new = targets(1, usage=0.9, num_waiting=30), targets(1, usage=0.3)
        assert wanted_targets(old + new, 2, 2) == 2

    def test_a_short_queue_keeps_all(self):
        assert wanted_targets(targets(2, usage=0.1, num_waiting=2), 2, 2) == 2

    def test_requests_that_wait_where_nothing_runs_need_a_target_each(self):
        assert wanted_targets(targets(1, usage=0.0, num_running=0, num_waiting=2), 1, 1) == 2

    def test_those_that_are_silent_are_taken_for_the_mean(self):
        assert wanted_targets(targets(1, usage=1.0), 2, 2) == 3

    @pytest.mark.parametrize(
        "readings", [[], targets(usage=math.nan), targets(num_waiting=-1), targets(usage=math.inf)]
    )
    def test_without_a_sound_reading_nothing_changes(self, readings):
        assert wanted_targets(readings, 2, 3) == 3

    def test_one_that_knows_nothing_of_speculation_still_tells_how_full_it_is(self):
        assert wanted_targets(targets(1, usage=1.0, gain=math.nan), 1, 1) == 2


def drafts(*busy: float, cost: float = 1.0) -> list[DraftReading]:
    return [DraftReading(each, cost) for each in busy]


class TestDrafts:
    @pytest.mark.parametrize(
        ("busy", "current", "wanted"),
        [
            ([0.69], 1, 1),
            ([0.71], 1, 2),
            ([1.0, 1.0], 2, 3),
            ([0.3, 0.3], 2, 2),  # one alone would be busy for 0.6 of its time
            ([0.24, 0.24], 2, 1),
            ([0.1] * 4, 4, 1),
        ],
    )
    def test_are_kept_where_their_time_has_no_price(self, busy, current, wanted):
        rich = targets(8, gain=2.0)
        assert wanted_drafts(drafts(*busy), rich, len(busy), 8, current) == wanted

    def test_never_cost_more_than_the_targets_they_stand_in_for(self):
        # Four targets, half as fast again: two targets' worth, and a draft costs as much as one.
        busy = drafts(1.0, 1.0, 1.0)
        assert wanted_drafts(busy, targets(4, gain=1.5), 3, 4, 3) == 2
        # Beside targets of four GPUs drafts of one may be eight.
        assert wanted_drafts(busy, targets(4, gain=1.5, cost=4.0), 3, 4, 3) == 5
        assert wanted_drafts(drafts(*[1.0] * 9), targets(4, gain=1.5, cost=4.0), 9, 4, 9) == 8

    def test_the_price_counts_what_targets_lose_to_each_other(self):
        """A shortage hides what drafts could bring: without the price, none would be added."""
        short = targets(4, gain=1.3, waited=0.3)
        assert wanted_drafts(drafts(1.0), short, 1, 4, 1) == 1
        priced = targets(4, gain=1.3, waited=0.3, price=0.75)
        assert wanted_drafts(drafts(1.0), priced, 1, 4, 1) == 1  # 1.2 + 0.75 are not 2
        assert wanted_drafts(drafts(1.0), targets(4, gain=1.35, waited=0.3, price=0.75), 1, 4, 1)
        better = targets(4, gain=1.35, waited=0.3, price=0.75)
        assert wanted_drafts(drafts(1.0), better, 1, 4, 1) == 2  # 1.4 + 0.75 are

    def test_a_price_that_nobody_waits_for_is_none(self):
        hidden = targets(4, gain=1.35, waited=0.01, price=0.75)
        assert wanted_drafts(drafts(1.0), hidden, 1, 4, 1) == 1

    def test_shrink_to_the_least_where_speculation_is_off(self):
        assert wanted_drafts(drafts(0.0, 0.0, 0.0), targets(4), 3, 4, 3) == 1
        # Busy for nothing: what they propose makes nobody faster.
        assert wanted_drafts(drafts(1.0, 1.0, 1.0), targets(4, gain=0.9), 3, 4, 3) == 1

    def test_without_work_none_is_needed(self):
        idle = targets(2, num_running=0, usage=0)
        assert wanted_drafts(drafts(0.0, 0.0), idle, 2, 2, 2) == 0

    def test_the_first_is_tried_where_there_is_work(self):
        assert wanted_drafts([], targets(2), 0, 2, 0) == 1
        assert wanted_drafts([], targets(2, num_running=0), 0, 2, 0) == 0
        assert wanted_drafts([], [], 0, 0, 0) == 0

    @pytest.mark.parametrize("readings", [[], drafts(math.nan), drafts(-0.1), drafts(math.inf)])
    def test_without_a_sound_reading_nothing_changes(self, readings):
        assert wanted_drafts(readings, targets(2), 2, 2, 2) == 2

    @pytest.mark.parametrize("told", [[], targets(4, gain=math.nan), targets(4, price=math.inf)])
    def test_without_a_word_from_targets_the_load_decides(self, told):
        assert wanted_drafts(drafts(1.0, 1.0), told, 2, 4, 2) == 3

    def test_nothing_is_known_of_costs_of_zero(self):
        assert wanted_drafts(drafts(1.0, 1.0, cost=0.0), targets(4, cost=0.0), 2, 4, 2) == 3

    @pytest.mark.parametrize("load", [0.1, 0.3, 0.55, 0.7, 0.9, 1.3, 2.0, 3.4])
    def test_a_steady_load_is_answered_once(self, load):
        """What was wanted is wanted again when it is there, and the same work is spread over it."""
        rich = targets(16, gain=2.0)
        count = 1
        for _ in range(8):
            busy = min(load / count, 1.0)
            count = wanted_drafts(drafts(*[busy] * count), rich, count, 16, count)
        busy = min(load / count, 1.0)
        assert busy <= 0.7
        assert wanted_drafts(drafts(*[busy] * count), rich, count, 16, count) == count
        assert count == math.ceil(load / 0.7)


def test_a_snapshot_tells_gain_and_price():
    on = {"phase": "on", "predicted_goodput": 150.0, "predicted_baseline": 100.0}
    assert speculation_of(on | {"capacity_price_draft": 0.4}).gain == 1.5
    assert speculation_of(on | {"capacity_price_draft": 0.4}).price == 0.4
    assert speculation_of(on).price == 0.0
    for phase in ("guard_off", "off", "idle", "baseline"):
        assert speculation_of(on | {"phase": phase}).gain == 1.0
    assert math.isnan(speculation_of({}).gain)
    assert math.isnan(speculation_of({"phase": "on"}).gain)
    assert math.isnan(speculation_of(on | {"predicted_baseline": 0.0}).gain)


def test_the_share_that_was_waited_is_of_the_time_since_the_last_look():
    now = [10.0]
    waited = WaitedShare(lambda: now[0])
    now[0] = 12.0
    assert waited.share(0.5) == 0.25
    now[0] = 13.0
    assert waited.share(0.5) == 0.0
    assert waited.share(9.0) == 1.0  # two looks at once: never more than all


def test_work_whose_gain_is_not_known_keeps_a_draft_and_calls_for_the_first():
    unknown = targets(2, gain=math.nan)
    assert wanted_drafts([], unknown, 0, 2, 0) == 1
    assert wanted_drafts([DraftReading(0.0, 1.0)], unknown, 1, 2, 1) == 1
    idle = targets(2, gain=math.nan, num_running=0)
    assert wanted_drafts([], idle, 0, 2, 0) == 0
    assert wanted_drafts([], targets(2, num_running=math.nan), 0, 2, 0) == 0


def test_readings_of_targets_that_are_all_gone_change_nothing():
    assert wanted_targets(targets(2), 0, 3) == 3


def test_readings_of_any_size_give_a_count():
    """Quotients of extreme numbers are none: 1e300 requests wait, 1e-310 run."""
    extreme = (0.0, 5e-324, 1e-310, 1e-3, 1.0, 1e300, math.nan, math.inf, -1.0)
    draw = random.Random(0)
    for _ in range(2000):
        told = [TargetReading(*draw.choices(extreme, k=7)) for _ in range(2)]
        drafts = [DraftReading(*draw.choices(extreme, k=2)) for _ in range(2)]
        assert 1 <= wanted_targets(told, 2, 2) <= 4
        assert 0 <= wanted_drafts(drafts, told, 2, 2, 2) <= 4


def test_a_share_beyond_one_is_a_full_one():
    assert wanted_targets(targets(2, usage=1e300), 2, 2) == wanted_targets(
        targets(2, usage=1.0), 2, 2
    )
