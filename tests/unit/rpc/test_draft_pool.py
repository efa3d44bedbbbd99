"""Where sessions are, who waits for whom, and what is queued for which draft."""

from __future__ import annotations

import threading
import time

import pytest

from specdec.rpc import draft_pool
from specdec.rpc.draft_member import Member
from specdec.rpc.draft_pool import DraftPool
from specdec.speculation.messages import Close, Commit, DraftInfo, Heartbeat, Open, Proposal
from specdec.speculation.proposer import Committed
from tests.unit.rpc.scripted_draft import VOCAB, sequence

# A wait that nothing comes near, however busy the machine: half of it tells waiting from not.
LONG_S = 60.0
INFO = DraftInfo("m", "h", VOCAB, 10_000, "model", 1, 1, 8)


def pool_with(*names: str) -> tuple[DraftPool, list[Member]]:
    pool = DraftPool(VOCAB)
    members = [pool.add_member(name) for name in names]
    for member in members:
        pool.member_up(member, INFO)
    return pool, members


def bulk(pool: DraftPool, member: Member) -> list:
    messages = []
    while (message := pool.take_bulk(member)) is not None:
        messages.append(message)
    return messages


def make_ready(pool: DraftPool, member: Member) -> None:
    """Let the draft answer every Open that waits for it."""
    for message in bulk(pool, member):
        if isinstance(message, Open):
            base_len = len(message.output_token_ids)
            pool.receive(member, Proposal(message.session_id, message.epoch, base_len, 0, []))


def answer(pool: DraftPool, member: Member, commit: Commit, num_tokens: int) -> None:
    base_len = commit.base_len + len(commit.token_ids)
    proposal = Proposal(commit.session_id, commit.epoch, base_len, commit.round, [7] * num_tokens)
    pool.receive(member, proposal)


def test_sessions_go_to_the_emptiest_member_and_stay() -> None:
    pool, _ = pool_with("a", "b")
    pool.open([sequence(i, [1]) for i in range(5)])
    assert (pool.sessions.num_at("a"), pool.sessions.num_at("b")) == (3, 2)
    pool.close([0, 2])
    pool.open([sequence(9, [1])])
    assert (pool.sessions.num_at("a"), pool.sessions.num_at("b")) == (2, 2)
    c = pool.add_member("c")
    pool.member_up(c, INFO)
    assert pool.sessions.num_at("c") == 0  # nobody moves without need


def test_what_was_opened_and_closed_before_it_was_sent_is_not_opened() -> None:
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1])])
    pool.close([1])
    assert bulk(pool, a) == [Close(1, 1)]


def test_a_close_never_overtakes_the_open_of_its_session() -> None:
    """Until the draft has answered, both go by the same stream."""
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1]), sequence(2, [1])])
    make_ready(pool, a)
    pool.open([sequence(3, [1])])
    assert isinstance(pool.take_bulk(a), Open)
    pool.close([3, 1])
    assert bulk(pool, a) == [Close(3, 1)]
    assert pool.take_step(a) == [Close(1, 1)]


def test_asking_a_lost_suspect_or_absent_draft_waits_for_nothing() -> None:
    pool = DraftPool(VOCAB)
    pool.open([sequence(1, [1])])
    member = pool.add_member("a")
    for change in (
        lambda: None,
        lambda: pool.member_up(member, INFO),
        lambda: pool.member_suspect(member, True),
        lambda: pool.member_down(member),
        lambda: pool.remove_member(member),
    ):
        change()
        started_s = time.monotonic()
        pool.ask({1: 4}, LONG_S, 5.0)
        assert pool.collect({1: 4}, LONG_S) == {}
        assert time.monotonic() - started_s < LONG_S / 2


@pytest.mark.parametrize("event", ["answer", "loss", "suspicion", "decline", "resync", "leave"])
def test_what_ends_the_wait(event: str) -> None:
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1])])
    make_ready(pool, a)
    pool.ask({1: 2}, LONG_S, 5.0)
    (commit,) = pool.take_step(a)
    events = {
        "answer": lambda: answer(pool, a, commit, 2),
        "loss": lambda: pool.member_down(a),
        "suspicion": lambda: pool.member_suspect(a, True),
        "decline": lambda: pool.receive(
            a, Proposal(1, 1, 0, commit.round, [], reason="overloaded")
        ),
        "resync": lambda: pool.receive(a, draft_pool.Resync(1, 1, "gap")),
        "leave": lambda: pool.remove_member(a),
    }
    timer = threading.Timer(0.05, events[event])
    started_s = time.monotonic()
    timer.start()
    drafts = pool.collect({1: 2}, LONG_S)
    waited_s = time.monotonic() - started_s
    timer.join()
    assert 0.04 < waited_s < LONG_S / 2
    assert (1 in drafts) == (event == "answer")


def test_the_wait_ends_on_time_and_takes_what_is_there() -> None:
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1]), sequence(2, [1])])
    make_ready(pool, a)
    pool.ask({1: 2, 2: 2}, 0.1, 5.0)
    commits = {commit.session_id: commit for commit in pool.take_step(a)}
    answer(pool, a, commits[2], 2)
    started_s = time.monotonic()
    drafts = pool.collect({1: 2, 2: 2}, 0.1)
    assert 0.09 < time.monotonic() - started_s < LONG_S / 2
    assert list(drafts) == [2]
    assert (pool.counters.num_hits, pool.counters.num_misses) == (1, 1)


def test_an_unawaited_ask_reaches_past_this_step() -> None:
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1])])
    make_ready(pool, a)
    pool.ask({1: 3}, 0.0, 5.0)
    (commit,) = pool.take_step(a)
    assert commit.k == 4  # this step adds one token of the target's own
    answer(pool, a, commit, 4)
    pool.ask({1: 3}, 0.0, 5.0)
    (commit,) = pool.take_step(a)
    assert commit.k == 7  # and this one up to three of the draft's besides
    pool.ask({1: 3}, 1.0, 5.0)
    assert pool.collect({1: 3}, 5.0)[1].token_ids == [7, 7, 7]  # in hand: no wait
    (commit,) = pool.take_step(a)
    assert commit.k == 7
    pool.commit([Committed(1, [8], 3, 0)])
    pool.ask({1: 3}, 1.0, 5.0)
    (commit,) = pool.take_step(a)
    assert commit.k == 3  # awaited


def test_commits_without_a_wish_are_buffered_and_sent_in_bulk() -> None:
    pool, (a,) = pool_with("a")
    pool.open([sequence(1, [1])])
    make_ready(pool, a)
    for token_id in range(draft_pool.NUM_TOKENS_BUFFERED - 1):
        assert not pool.commit([Committed(1, [token_id], 0, 0)])
    assert pool.take_step(a) == []
    assert pool.commit([Committed(1, [99], 0, 0)])
    (commit,) = pool.take_step(a)
    assert (commit.k, len(commit.token_ids)) == (0, draft_pool.NUM_TOKENS_BUFFERED)
    pool.commit([Committed(1, [5], 0, 0)])
    pool.flush_old_commits()
    (commit,) = pool.take_step(a)
    assert (commit.k, commit.token_ids) == (0, [5])


def test_losing_a_member_moves_its_sessions_with_all_their_text() -> None:
    pool, (a, b) = pool_with("a", "b")
    pool.open([sequence(1, [1]), sequence(2, [1])])
    make_ready(pool, a)
    make_ready(pool, b)
    pool.commit([Committed(1, [5, 6], 0, 0)])
    pool.member_down(a)
    (moved,) = bulk(pool, b)
    assert (moved.session_id, moved.epoch, moved.output_token_ids) == (1, 2, [5, 6])
    assert pool.disabled_reason(1) == "draft_prefilling"
    pool.member_down(b, "draft_incompatible: token 3 differs")
    assert pool.disabled_reason(1) == "draft_incompatible: token 3 differs"
    pool.member_up(a, INFO)
    assert [m.epoch for m in bulk(pool, a)] == [3, 2]


def test_a_draining_member_keeps_nothing_and_gets_nothing() -> None:
    pool, (a, b) = pool_with("a", "b")
    pool.open([sequence(1, [1])])
    make_ready(pool, a)
    pool.heartbeat(a, Heartbeat(1, 1, draining=True))
    assert bulk(pool, a) == [Close(1, 1)]
    assert [m.session_id for m in bulk(pool, b)] == [1]
    pool.heartbeat(b, Heartbeat(1, 1, draining=True))
    pool.open([sequence(2, [1])])
    assert pool.disabled_reason(2) == "draft_draining"
    assert bulk(pool, a) == []


def test_a_link_that_ends_late_does_not_disturb_its_successor() -> None:
    pool, (old,) = pool_with("a")
    pool.remove_member(old)
    new = pool.add_member("a")
    assert new is not old
    pool.member_up(new, INFO)
    pool.open([sequence(1, [1])])
    pool.member_down(old)
    assert pool.sessions.num_at("a") == 1


def test_timing_tells_of_rounds_load_and_heartbeats_once() -> None:
    pool, (a, b) = pool_with("a", "b")
    pool.open([sequence(1, [1])])
    make_ready(pool, a)
    pool.ask({1: 3}, 1.0, 100.0)
    (commit,) = pool.take_step(a)
    base_len = commit.base_len + len(commit.token_ids)
    proposal = Proposal(1, commit.epoch, base_len, commit.round, [7] * 3, draft_ms=0.001)
    pool.receive(a, proposal)
    pool.heartbeat(a, Heartbeat(1, 1, idle_fraction=0.25, num_targets=3), 0.004)
    pool.heartbeat(b, Heartbeat(1, 1, idle_fraction=0.5, num_targets=1), 0.002)
    timing = pool.take_timing("draft")
    assert (timing.drafter, timing.asked, timing.draft_s) == ("draft", (3, 3), 1e-6)
    assert timing.network_s is not None
    assert 0 < timing.network_s < 1
    assert (timing.busy_fraction, timing.num_targets) == (0.75, 3)  # the busier one's
    pool.heartbeat(b, Heartbeat(2, 1, idle_fraction=0.5, num_targets=1), 0.002)
    again = pool.take_timing("draft")
    assert (again.draft_s, again.network_s, again.asked) == (None, 0.002, None)
    assert pool.take_timing("draft").network_s is None


def test_a_draft_is_silent_when_suspect_or_lost_but_not_when_it_leaves() -> None:
    pool, (a,) = pool_with("a")
    unknown = pool.add_member("never connected")
    assert not pool.take_timing("draft").is_silent
    pool.member_suspect(a, True)
    assert pool.take_timing("draft").is_silent
    pool.member_suspect(a, False)
    pool.heartbeat(a, Heartbeat(1, 0))
    pool.member_down(a)
    assert pool.take_timing("draft").is_silent
    pool.member_up(a, INFO)
    assert not pool.take_timing("draft").is_silent
    pool.heartbeat(a, Heartbeat(2, 0, draining=True))
    pool.member_down(a)
    assert not pool.take_timing("draft").is_silent
    assert not unknown.is_silent
