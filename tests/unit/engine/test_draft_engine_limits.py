"""The draft engine among many sessions: batches, deadlines, fair shares, memory."""

from __future__ import annotations

import random

import pytest

from specdec.speculation.messages import Commit
from tests.unit.engine.draft_harness import (
    COUPLED,
    PROMPT,
    Clock,
    Peer,
    PoolExecutor,
    make_engine,
    other,
    ready,
    run_idle,
)

# -- batching --------------------------------------------------------------------------------------


def test_sessions_of_all_targets_share_each_pass():
    engine = make_engine()
    peers = [ready(engine, target=t, session_id=i) for i in range(3) for t in "ab"]
    engine.executor.plans.clear()
    for number, peer in enumerate(peers):
        peer.commit(peer.future(1), k=1 + number)
    sent = run_idle(engine)
    assert [len(plan.query_lens) for plan in engine.executor.plans] == [6, 5, 4, 3, 2, 1]
    for number, peer in enumerate(peers):
        (answer,) = peer.mine(sent)
        assert answer.token_ids == peer.future(1 + number)


def test_prompt_runs_in_chunks_beside_drafting():
    engine = make_engine(max_num_batched_tokens=8)
    drafting = ready(engine)
    engine.executor.plans.clear()
    late = Peer(engine, list(range(1, 31)), COUPLED, session_id=2)
    assert drafting.ask(drafting.future(1), 8).token_ids == drafting.future(8)
    assert all(len(plan.query_lens) == 2 for plan in engine.executor.plans[:4])
    assert max(plan.num_tokens for plan in engine.executor.plans) <= 8
    run_idle(engine)
    assert late.ask(late.future(1), 3).token_ids == late.future(3)


def test_asked_too_early_it_answers_in_full_when_time_allows():
    engine = make_engine(max_num_batched_tokens=8)
    peer = Peer(engine, list(range(1, 31)), COUPLED)
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


# -- deadlines -------------------------------------------------------------------------------------


def timed(pass_s=0.010, token_s=0.0, **options):
    clock = Clock()
    executor = PoolExecutor(clock=clock, pass_s=pass_s, token_s=token_s)
    return make_engine(executor, clock, **options), clock


def test_a_short_deadline_gets_the_tokens_there_is_time_for():
    engine, clock = timed()
    peer = ready(engine)
    peer.ask(peer.future(1), 2)
    asked_s = clock.now_s
    answer = peer.ask(peer.future(3), 8, deadline_ms=45.0)
    assert answer.token_ids == peer.future(4)
    assert clock.now_s - asked_s <= 0.045


def test_a_deadline_that_passed_is_answered_at_once():
    engine, clock = timed()
    peer, neighbour = ready(engine), ready(engine, session_id=2)
    neighbour.commit(neighbour.future(1), k=2)
    peer.commit(peer.future(1), k=4, deadline_ms=5.0)
    clock.advance(0.006)
    engine.executor.plans.clear()
    (answer,) = peer.mine(sent := engine.step())
    assert (answer.reason, answer.token_ids, answer.round) == ("overloaded", [], 1)
    assert len(engine.executor.plans[0].query_lens) == 1
    (theirs,) = neighbour.mine(sent + engine.step())
    assert theirs.token_ids == neighbour.future(2)
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


def test_too_early_and_too_late_says_prefilling_then_ready():
    engine, _ = timed(max_num_batched_tokens=8)
    peer = Peer(engine, list(range(1, 31)), COUPLED)
    answer = peer.ask(peer.future(1), 3, deadline_ms=15.0)
    assert (answer.reason, answer.token_ids) == ("prefilling", [])
    assert [(m.reason, m.round) for m in peer.mine(run_idle(engine))] == [("", 0)]
    assert peer.session.num_lagging_tokens == 0
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


def test_catch_up_beside_drafting_respects_its_deadline():
    """1 ms a token: a 60-token chunk beside a draft would cost it 60 of its 50 ms."""
    engine, clock = timed(pass_s=0.005, token_s=0.001)
    drafting = ready(engine)
    drafting.ask(drafting.future(1), 4)
    Peer(engine, [1 + i % 30 for i in range(200)], COUPLED, session_id=2)
    asked_s = clock.now_s
    answer = drafting.ask(drafting.future(1), 4, deadline_ms=50.0)
    assert answer.token_ids == drafting.future(4)
    assert clock.now_s - asked_s <= 0.050


def test_a_long_prompt_does_not_block_the_rounds_of_active_sessions():
    """It proceeds between the rounds, in passes short enough for the next ask."""
    engine, clock = timed(pass_s=0.005, token_s=0.001)
    drafting = ready(engine)
    long = Peer(engine, [1 + i % 30 for i in range(200)], COUPLED, session_id=2)
    drafting.ask(drafting.future(1), 2)
    for _ in range(12):
        asked_s = clock.now_s
        engine.step()  # the target verifies meanwhile
        assert clock.now_s - asked_s <= 0.030
        drafting.ask(drafting.future(1), 2)
    assert long.session.num_lagging_tokens == 0


@pytest.mark.parametrize("seats", [2, 4])
def test_a_busy_target_does_not_starve_another(seats):
    """16 sessions against 1, for few seats: the one gets a seat in nearly every pass."""
    engine, clock = timed(max_num_sequences=seats)
    many = [ready(engine, [1 + i, 2, 3], session_id=i) for i in range(16)]
    single = ready(engine, [3, 2, 1], target="b")
    rng = random.Random(3)
    for _ in range(6):
        for peer in rng.sample(many, 16):
            if peer.session.ask is None:
                peer.commit(peer.future(1), k=4, deadline_ms=1000.0 * rng.random() + 500.0)
        asked_s = clock.now_s
        answer = single.ask(single.future(1), 4, deadline_ms=2000.0)
        assert answer.token_ids == single.future(4)
        assert clock.now_s - asked_s <= 5 * 0.010
    sent = run_idle(engine)
    assert sum(len(m.token_ids) for peer in many for m in peer.mine(sent)) > 0


def test_a_long_prompt_of_one_target_does_not_starve_the_prompt_of_another():
    engine = make_engine(max_num_batched_tokens=8)
    Peer(engine, [1 + i % 30 for i in range(200)], COUPLED)
    short = Peer(engine, list(range(1, 17)), COUPLED, target="b")
    num_steps = 1
    while not short.mine(engine.step()):
        num_steps += 1
        assert num_steps <= 5


# -- memory ----------------------------------------------------------------------------------------


def test_a_full_pool_refuses_at_once_and_recovers():
    engine = make_engine(PoolExecutor(num_blocks=6))
    first = ready(engine, prompt=list(range(1, 20)))
    second = Peer(engine, list(range(1, 12)), COUPLED, session_id=2)
    assert [m.reason for m in second.mine(run_idle(engine))] == ["kv_full"]
    assert second.session.block_table == []
    answer = second.ask(second.future(1), 2)
    assert (answer.reason, answer.token_ids) == ("kv_full", [])
    assert first.ask(first.future(1), 3).token_ids == first.future(3)
    first.close()
    assert second.ask(second.future(1), 2).token_ids == second.future(2)


def test_a_session_that_outgrows_the_pool_answers_what_fits_then_makes_room():
    engine = make_engine(PoolExecutor(num_blocks=3))
    peer = ready(engine, prompt=list(range(1, 10)))
    # 12 slots: 10 committed tokens and two drafted ones have keys, the third needs none.
    assert peer.ask(peer.future(1), 8).token_ids == peer.future(3)
    assert peer.ask(peer.future(3), 8).reason == "kv_full"
    assert engine.memory.blocks.num_used_blocks == 0


def test_rejected_tokens_give_their_blocks_back():
    engine = make_engine()
    peer = ready(engine)
    peer.ask(peer.future(1), 8)
    assert len(peer.session.block_table) == 5  # 12 committed tokens and 7 of the drafted
    peer.commit([other(peer.future(1)[0])], k=0)
    assert len(peer.session.block_table) == 4
    peer.close()
    assert engine.memory.num_held("a") == 0


def test_a_target_keeps_to_its_share():
    engine = make_engine(PoolExecutor(num_blocks=8), max_share_per_target=0.5)
    ready(engine, prompt=list(range(1, 12)))
    refused = Peer(engine, list(range(1, 12)), COUPLED, session_id=2)
    assert [m.reason for m in refused.mine(run_idle(engine))] == ["kv_full"]
    theirs = ready(engine, prompt=list(range(1, 12)), target="b")
    assert theirs.ask(theirs.future(1), 3).token_ids == theirs.future(3)


def test_only_idle_sessions_are_evicted_the_longest_idle_first():
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=9), clock, idle_timeout_s=30.0)
    peers = [ready(engine, prompt=list(range(1, 12)), session_id=i) for i in range(3)]
    clock.advance(20.0)
    peers[0].ask(peers[0].future(1), 1)
    clock.advance(20.0)
    newcomer = Peer(engine, list(range(1, 12)), COUPLED, target="b")
    sent = run_idle(engine)
    assert [m.reason for m in peers[1].mine(sent)] == ["evicted"]
    assert not peers[0].mine(sent)
    assert not peers[2].mine(sent)
    assert [m.reason for m in newcomer.mine(sent)] == [""]


def test_a_session_with_an_open_ask_is_never_evicted():
    """Its deadline is far away, and the pool is wanted by somebody else."""
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=5), clock, idle_timeout_s=30.0)
    peer = ready(engine)
    peer.commit(peer.future(1), k=4)
    clock.advance(31.0)
    newcomer = Peer(engine, PROMPT, COUPLED, target="b")
    sent = run_idle(engine)
    assert [m.token_ids for m in peer.mine(sent)] == [peer.future(4)]
    assert [m.reason for m in newcomer.mine(sent)] == ["kv_full"]


def test_closing_and_dropping_free_everything():
    engine = make_engine()
    peers = [ready(engine, target=t, session_id=i) for i in range(2) for t in "ab"]
    for peer in peers:
        peer.commit(peer.future(1), k=8)
    engine.step()
    peers[0].close()
    engine.drop_target("b")
    assert {target for target, _ in run_idle(engine)} == {"a"}
    assert [s.key for s in engine.sessions.all()] == [("a", 1)]
    peers[2].close()
    assert engine.memory.blocks.num_used_blocks == 0
    engine.submit("b", [Commit(1, 1, 0, 9, [], 2, 100.0)])
    assert not engine.has_work
