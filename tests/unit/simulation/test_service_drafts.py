"""Drafts apart from their targets: batches, waiting, silence, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.simulation.service.drafts import DraftLink, DraftReplica, Outage, Round
from specdec.simulation.service.events import Events
from specdec.simulation.service.network import Latency
from tests.unit.simulation.simulated import request
from tests.unit.simulation.steady_service import Steady, record, service


def draft_replica(outages=()):
    events = Events()
    return events, DraftReplica(events, Steady(), outages)


def test_a_draft_serves_what_waits_as_one_batch():
    events, draft = draft_replica()
    done: list[tuple[str, float, float]] = []

    def ask(name: str, depth: int, target: int):
        answer = lambda seconds: done.append((name, events.now_s, seconds))  # noqa: E731
        draft.ask(Round(target, depth, 4 * depth, answer))

    events.at(0.0, lambda: ask("first", 2, 0))
    events.at(0.001, lambda: ask("second", 3, 1))
    events.at(0.0015, lambda: ask("third", 5, 2))
    events.run(1.0)
    # 2 ms for the first; the others wait, and take the depth of the deeper.
    assert done == [("first", 0.002, 0.002), ("second", 0.007, 0.005), ("third", 0.007, 0.005)]


def test_a_draft_knows_how_busy_it_is_and_for_whom():
    events, draft = draft_replica()
    for number in range(600):
        events.at(number * 0.01, lambda n=number: draft.ask(Round(n % 3, 4, 4, lambda _: None)))
    events.run(6.0)
    assert draft.busy_fraction == pytest.approx(0.4, abs=0.01)
    assert draft.num_targets == 3
    events.run(12.0)
    assert draft.num_targets == 1


def test_what_an_outage_hits_is_lost():
    events, draft = draft_replica([Outage(0.0015, 0.5)])
    answered = []
    for time_s in (0.0, 0.001, 0.3, 0.6):
        events.at(time_s, lambda t=time_s: draft.ask(Round(0, 2, 2, lambda _: answered.append(t))))
    events.run(1.0)
    # The first was being drafted, the second waited, the third came during the outage.
    assert answered == [0.6]


def link_of(events, drafts, target=0, latency=Latency(0.0)):
    return DraftLink(events, drafts, target, latency, np.random.default_rng(0), 1e-5)


def test_a_link_measures_its_rounds():
    events, draft = draft_replica()
    link = link_of(events, [draft], latency=Latency(0.0004))
    arrived = []
    link.ask(3, 12, lambda: arrived.append(events.now_s))
    events.run(1.0)
    assert arrived == [pytest.approx(0.0038)]
    timing = link.take_timing(0.0038)
    assert timing.draft_s == pytest.approx(0.003)
    assert timing.network_s == pytest.approx(0.0008)
    assert (timing.asked, timing.waited_s) == ((3, 12), 0.0038)
    assert link.take_timing(None).draft_s is None


def test_a_silent_draft_is_left_for_another_and_contexts_are_computed_there():
    events = Events()
    drafts = [DraftReplica(events, Steady(), [Outage(1.0, 2.0)]), DraftReplica(events, Steady())]
    link = link_of(events, drafts)
    seen = {}
    for time_s in (0.9, 1.1, 1.31, 1.4, 1.42, 2.5):
        events.at(time_s, lambda t=time_s: seen.update({t: link.is_available(10_000)}))
    events.run(3.0)
    # Noticed 0.3 s after it fell silent; 10000 tokens at 10 us are 0.1 s of catching up.
    assert seen == {0.9: True, 1.1: True, 1.31: False, 1.4: False, 1.42: True, 2.5: True}


def test_the_only_draft_is_used_again_when_it_is_back():
    events = Events()
    link = link_of(events, [DraftReplica(events, Steady(), [Outage(1.0, 2.0)])])
    seen = {}
    for time_s in (1.2, 1.5, 2.05, 2.2):
        events.at(time_s, lambda t=time_s: seen.update({t: link.is_available(10_000)}))
    events.at(1.55, lambda: seen.update(silent=link.take_timing(None).is_silent))
    events.run(3.0)
    assert seen == {1.2: True, 1.5: False, "silent": True, 2.05: False, 2.2: True}


def test_a_step_waits_for_its_draft_and_no_longer_than_it_may():
    one = request(1, draft=[1] * 41)
    rounds = {}
    for wait_s in (0.25, 0.002):
        of = service([one], 1, num_drafts=1, latency=Latency(0.0005), max_wait_s=wait_s)
        rounds[wait_s] = record(of, "fixed:2", until_s=0.5)
    # 2 ms of drafting and 1 ms of messages before 10 ms: two tokens in 13 ms. Without: one in 12.
    assert rounds[0.25].e2e_s[0] == pytest.approx(0.010 + 20 * 0.013)
    assert rounds[0.25].totals.num_late == 0
    late = rounds[0.002]
    assert late.e2e_s[0] == pytest.approx(0.010 + 40 * 0.012)
    assert late.totals.num_drafted == 0
    assert late.totals.num_late == late.totals.num_decodes


def test_a_draft_shared_by_targets_makes_them_wait_for_each_other():
    one = request(1, draft=[1] * 200)

    def waited(num_drafts: int) -> float:
        of = service([one], 1, num_targets=8, num_drafts=num_drafts, cost=Steady(0.004))
        totals = record(of, "fixed:4", until_s=5.0).totals
        return totals.wait_s / totals.num_decodes

    # Alone a round takes 4 ms. Shared by eight it comes after one that may just have begun.
    assert waited(8) == pytest.approx(0.004, rel=0.01)
    assert 0.0045 < waited(1) < 0.008


@pytest.mark.parametrize("policy", ["fixed:3", "adaptive"])
def test_an_outage_costs_speed_and_never_a_token(policy):
    one = request(1, draft=[3] * 400)
    healthy = service([one], 4, num_drafts=1)
    broken = service([one], 4, num_drafts=1, outages=((0, Outage(2.0, 6.0)),))
    fast, slow = (record(of, policy, until_s=10.0) for of in (healthy, broken))
    assert slow.goodput_tokens_per_s < 0.9 * fast.goodput_tokens_per_s
    assert slow.goodput_tokens_per_s > 0.9 * record(healthy).goodput_tokens_per_s
    for found in (fast, slow):
        assert 0 <= found.totals.num_committed - 400 * found.num_finished < 4 * 400


def test_drafts_apart_need_a_drafter_that_can_be_apart():
    with pytest.raises(ConfigError, match="only a draft model runs apart"):
        service([request(1, ngram=[0])], 1, drafters=("ngram",), num_drafts=1)
    with pytest.raises(ConfigError, match="there is no draft 2"):
        service([request(1, draft=[0])], 1, num_drafts=2, outages=((2, Outage(0, 1)),))
