"""Numbers that a peer says of itself and of time: what is believed, and what is measured here."""

from __future__ import annotations

import math

import pytest

from specdec.rpc import convert
from specdec.rpc.draft_pool import DraftPool
from specdec.rpc.liveness import Liveness, LivenessSettings
from specdec.speculation.messages import Commit, DraftInfo, Heartbeat, Proposal
from specdec.v1 import draft_pb2
from tests.unit.rpc.scripted_draft import VOCAB, sequence

INFO = DraftInfo("m", "h", VOCAB, 10_000, "model", 1, 1, 8)
NS = 1_000_000_000


class Echoes:
    """A connection's heartbeats on a clock that passes when told to."""

    def __init__(self, trusted: bool = True) -> None:
        self.now_ns = 50 * NS
        self.pool = DraftPool(VOCAB)
        self.member = self.pool.add_member("a", trusted)
        self.pool.member_up(self.member, INFO)
        settings = LivenessSettings(lost_after=5)
        self.liveness = Liveness(
            self.member, self.pool, settings, lambda: None, lambda: self.now_ns
        )

    def send(self) -> Heartbeat:
        self.liveness.beat()
        beat = self.liveness.take_heartbeat()
        assert beat is not None
        return beat


def test_a_round_trip_is_measured_by_our_own_clock_whatever_is_echoed() -> None:
    echoes = Echoes()
    beat = echoes.send()
    echoes.now_ns += 2_000_000
    echoes.liveness.heard_heartbeat(Heartbeat(beat.sequence_number, sent_ns=2**64 - 1))
    assert echoes.member.round_trip_s == pytest.approx(0.002)
    assert echoes.pool.counters.round_trip_ms == pytest.approx(2.0)
    assert echoes.pool.take_timing("draft").network_s == pytest.approx(0.002)


@pytest.mark.parametrize("sent_ns", [0, 1, 2**64 - 1])
def test_what_answers_no_heartbeat_of_ours_measures_nothing(sent_ns) -> None:
    echoes = Echoes()
    beat = echoes.send()
    echoes.now_ns += 1_000_000
    for number in (0, beat.sequence_number + 1, 2**63):
        echoes.liveness.heard_heartbeat(Heartbeat(number, sent_ns))
    assert echoes.member.round_trip_s is None
    echoes.liveness.heard_heartbeat(Heartbeat(beat.sequence_number, sent_ns))
    echoes.now_ns += 3600 * NS
    echoes.liveness.heard_heartbeat(Heartbeat(beat.sequence_number, sent_ns))  # once more
    assert echoes.member.round_trip_s == pytest.approx(0.001)


def test_heartbeats_that_are_never_echoed_are_not_remembered_for_ever() -> None:
    echoes = Echoes()
    first = echoes.send()
    for _ in range(5):
        last = echoes.send()
    echoes.liveness.heard_heartbeat(first)
    assert echoes.member.round_trip_s is None
    echoes.now_ns += 1_000_000
    echoes.liveness.heard_heartbeat(last)
    assert echoes.member.round_trip_s == pytest.approx(0.001)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_no_load_leaves_its_physical_range(value) -> None:
    wire = draft_pb2.Heartbeat(
        idle_fraction=value, draft_step_ms=value, num_free_blocks=2**32 - 1, num_targets=2**32 - 1
    )
    beat = convert.heartbeat_from_wire(wire)
    assert 0.0 <= beat.idle_fraction <= 1.0
    assert 0.0 <= beat.draft_step_ms <= convert.MAX_TIME_MS
    assert beat.num_free_blocks <= convert.MAX_BLOCKS
    assert beat.num_targets <= convert.MAX_NUM_TARGETS


def test_no_drafting_time_leaves_its_physical_range() -> None:
    proposal = draft_pb2.Proposal(draft_us=2**64 - 1)
    (message,) = convert.ready_from_wire(draft_pb2.SpeculateResponse(proposals=[proposal]))
    assert message.draft_ms == convert.MAX_TIME_MS


def served(pool: DraftPool, name: str, trusted: bool, seq_id: int) -> Commit:
    """A member of its own, with a session that was asked."""
    member = pool.add_member(name, trusted)
    pool.member_up(member, INFO)
    pool.open([sequence(seq_id, [1, 2])])
    opened = pool.take_bulk(member)
    pool.receive(member, Proposal(seq_id, opened.epoch, 0, 0, []))
    pool.ask({seq_id: 2}, 1.0, 5.0)
    (commit,) = pool.take_step(member)
    return commit


def test_what_a_drafter_from_outside_claims_is_no_part_of_the_price_of_ours() -> None:
    pool = DraftPool(VOCAB)
    commit = served(pool, "drafter-1", trusted=False, seq_id=1)
    outside = pool.members["drafter-1"]
    claim = Heartbeat(1, 0, num_free_blocks=10**6, idle_fraction=0.0, num_targets=10**4)
    pool.heartbeat(outside, claim, 1.9)
    pool.receive(outside, Proposal(1, commit.epoch, 0, commit.round, [7, 7], draft_ms=900.0))
    pool.member_suspect(outside, True)
    timing = pool.take_timing("draft")
    assert (timing.draft_s, timing.network_s, timing.asked) == (None, None, None)
    assert (timing.busy_fraction, timing.num_targets, timing.is_silent) == (0.0, 1, False)
    assert pool.counters.round_trip_ms == 0.0
    assert pool.loads() == {}
    assert outside.round_trip_s == 1.9  # told of that drafter, and of nobody else


def test_our_own_draft_is_priced_as_before() -> None:
    pool = DraftPool(VOCAB)
    commit = served(pool, "draft-1", trusted=True, seq_id=1)
    own = pool.members["draft-1"]
    load = Heartbeat(1, 0, num_free_blocks=9, idle_fraction=0.25, num_targets=3)
    pool.heartbeat(own, load, 0.002)
    pool.receive(own, Proposal(1, commit.epoch, 0, commit.round, [7, 7], draft_ms=0.001))
    timing = pool.take_timing("draft")
    assert timing.draft_s == pytest.approx(1e-6)
    assert timing.asked == (2, 2)
    assert (timing.busy_fraction, timing.num_targets) == (0.75, 3)
    assert pool.loads() == {"draft-1": load}
