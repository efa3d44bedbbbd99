"""The draft engine proposes what the target itself would commit, whatever happens in between.

Draft and target are one model here, so in greedy and coupled mode every proposal must equal the
target's own continuation; a wrong or stale key anywhere would change it.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from specdec.params import SamplingParams
from specdec.speculation.messages import Commit, Resync
from tests.unit.engine.draft_harness import (
    BLOCK,
    COUPLED,
    EOS,
    GREEDY,
    VOCAB_SIZE,
    Clock,
    Peer,
    PoolExecutor,
    make_engine,
    run_idle,
)

PROMPT = list(range(1, 12))
MODES = pytest.mark.parametrize(
    "params", [pytest.param(GREEDY, id="greedy"), pytest.param(COUPLED, id="coupled")]
)


def ready(engine, prompt=PROMPT, params=COUPLED, **options) -> Peer:
    """A session whose prompt is computed."""
    peer = Peer(engine, prompt, params, **options)
    assert [m.reason for m in peer.mine(run_idle(engine))] == [""]
    return peer


def other(token_id: int) -> int:
    return (token_id + 1) % VOCAB_SIZE


# -- what is proposed ------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("k", range(1, 9))
def test_proposals_equal_the_target_after_acceptance_and_rejection(params, k):
    """Rejected at every position in turn, accepted in full in between."""
    peer = ready(make_engine(), params=params)
    drafted: list[int] = []
    for num_accepted in [*range(k + 1), *range(k, -1, -1)]:
        kept = drafted[:num_accepted]
        if num_accepted < len(drafted):
            following = other(drafted[num_accepted])
        else:
            following = peer.future(len(kept) + 1)[-1]
        answer = peer.ask([*kept, following], k)
        drafted = answer.token_ids
        assert drafted == peer.future(k)
        assert answer.base_len == len(peer.output)


@MODES
def test_full_acceptance_costs_two_tokens_once(params):
    engine = make_engine()
    peer = ready(engine, params=params)
    drafted = peer.ask(peer.future(1), 4).token_ids
    engine.executor.plans.clear()
    peer.ask(peer.future(5), 4)
    assert peer.output[-5:-1] == drafted
    assert [plan.num_tokens for plan in engine.executor.plans] == [2, 1, 1, 1]


def test_tokens_still_in_hand_are_not_drafted_twice():
    """The target went on by one token without waiting: three of four are left."""
    engine = make_engine()
    peer = ready(engine)
    drafted = peer.ask(peer.future(1), 4).token_ids
    engine.executor.plans.clear()
    answer = peer.ask(peer.future(1), 4)
    assert answer.token_ids[:3] == drafted[1:]
    assert answer.token_ids == peer.future(4)
    assert len(engine.executor.plans) == 1
    assert peer.ask(peer.future(1), 2).token_ids == peer.future(2)
    assert len(engine.executor.plans) == 1


@MODES
@pytest.mark.parametrize("is_idle", [True, False], ids=["eager", "lazy"])
def test_waking_after_a_pause_accepts_everything(params, is_idle):
    """Case *5: K = 3, then 0 for many tokens, then 3 again; nothing runs for k = 0 while busy."""
    engine = make_engine()
    peer = ready(engine, params=params)
    peer.ask(peer.future(1), 3)
    engine.executor.plans.clear()
    for _ in range(30):
        peer.commit(peer.future(1), k=0)
        if is_idle:
            run_idle(engine)
    if is_idle:
        # Idle passes fetch whole blocks, not single tokens, and leave less than one.
        assert len(engine.executor.plans) <= 30 // engine.executor.block_size + 1
        assert peer.session.num_lagging_tokens < engine.executor.block_size
    else:
        assert engine.executor.plans == []
    answer = peer.ask(peer.future(1), 3)
    assert answer.token_ids == peer.future(3)


@MODES
def test_eviction_is_told_and_undone_by_an_ask(params):
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=6), clock, idle_timeout_s=30.0)
    peer = ready(engine, params=params)
    peer.ask(peer.future(1), 3)
    clock.advance(31.0)
    other_peer = Peer(engine, [*range(20, 36)], params, session_id=2)
    notices = peer.mine(run_idle(engine))
    assert [notice.reason for notice in notices] == ["evicted"]
    assert peer.session.block_table == []
    peer.commit(peer.future(3), k=0)
    assert not engine.has_work  # it is not rebuilt before it is asked
    other_peer.close()
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


@MODES
def test_own_blocks_make_the_return_cheap(params):
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=8), clock, idle_timeout_s=30.0)
    peer = ready(engine, prompt=list(range(1, 21)), params=params)
    clock.advance(31.0)
    Peer(engine, [*range(20, 36)], params, session_id=2).close()
    big = Peer(engine, [*range(20, 36)], params, session_id=3)
    assert [notice.reason for notice in peer.mine(run_idle(engine))] == ["evicted"]
    big.close()
    engine.executor.plans.clear()
    assert peer.ask(peer.future(1), 2).token_ids == peer.future(2)
    # 5 blocks of prompt, of which the other session took one or two.
    assert engine.executor.plans[0].num_tokens < 21


@pytest.mark.parametrize(
    "extra",
    [
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"repetition_penalty": 1.8},
        {"logit_bias": {3: 4.0, 9: -100.0}},
        {"min_tokens": 12, "ignore_eos": False, "logit_bias": {EOS: 8.0}},
        {"allowed_token_ids": (2, 4, 6, 8, 10)},
        {"bad_words_token_ids": ((4, 5), (7,))},
    ],
    ids=lambda extra: next(iter(extra)),
)
@pytest.mark.parametrize("base", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 11}])
def test_parameters_apply_at_every_position(base, extra):
    params = SamplingParams(**{"max_tokens": 500, "ignore_eos": True, **base, **extra})
    peer = ready(make_engine(), params=params)
    for _ in range(3):
        expected = [peer.future(1)[0], *peer.future(6)[1:]]
        drafted = peer.ask(expected[:1], 5).token_ids
        assert drafted == expected[1 : 1 + len(drafted)]
        assert len(drafted) == 5 or drafted[-1] == EOS
        peer.commit(drafted, k=0)


def test_drafting_stops_behind_eos():
    params = SamplingParams(temperature=0.0, max_tokens=50, logit_bias={EOS: 100.0})
    assert ready(make_engine(), params=params).ask([5], 4).token_ids == [EOS]


def test_draft_tokens_stay_in_the_target_vocabulary():
    engine = make_engine()
    engine.add_target("small", 10)
    for number, params in enumerate((GREEDY, COUPLED, BLOCK)):
        peer = Peer(engine, PROMPT[:8], params, target="small", session_id=number)
        wide = Peer(engine, PROMPT[:8], params, session_id=number)
        run_idle(engine)
        wide.commit([5], 8)
        answer = peer.ask([5], 8)
        assert len(answer.token_ids) == 8
        assert max(answer.token_ids) < 10
        assert all(int(law.ids[-1]) < 10 for law in answer.laws)


@pytest.mark.parametrize("params", [GREEDY, COUPLED, BLOCK], ids=["greedy", "coupled", "block"])
def test_a_mask_of_the_whole_target_vocabulary_is_lifted_despite_the_drafts_padding(params):
    """As at a target of ten tokens, which finds nothing left and ignores the mask."""
    engine = make_engine()
    engine.add_target("small", 10)
    everything = dataclasses.replace(params, stop_token_ids=tuple(range(10)), min_tokens=50)
    masked = Peer(engine, PROMPT[:8], everything, target="small", session_id=1)
    plain = Peer(engine, PROMPT[:8], params, target="small", session_id=2)
    wide = ready(engine, session_id=3)
    wide.commit(wide.future(1), 4)
    plain.commit([5], 4)
    masked.commit([5], 4)
    sent = run_idle(engine)
    answers = [peer.mine(sent)[-1] for peer in (masked, plain, wide)]
    # Every token is a stop token here: where no law is sent, drafting ends behind the first.
    num_tokens = 4 if params is BLOCK else 1
    assert answers[0].token_ids == answers[1].token_ids[:num_tokens]
    assert max(answers[1].token_ids) < 10
    assert len(answers[1].token_ids) == 4
    assert answers[2].token_ids == wide.future(4)


@pytest.mark.parametrize("vocab_size", [0, -1])
def test_a_target_without_a_vocabulary_is_refused(vocab_size):
    engine = make_engine()
    with pytest.raises(ValueError, match="vocabulary"):
        engine.add_target("none", vocab_size)
    Peer(engine, PROMPT, COUPLED, target="none")
    assert not engine.has_work


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
    second = Peer(engine, list(range(1, 12)), COUPLED, target="b")
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


# -- context ---------------------------------------------------------------------------------------


def test_draft_context_shorter_than_the_text():
    """Case *12: limit 64; a prompt of 60 is drafted for until it is full, one of 100 never."""
    engine = make_engine(PoolExecutor(model_max_len=64))
    prompt = [1 + i % 30 for i in range(60)]
    peer = ready(engine, prompt=prompt)
    assert peer.ask(peer.future(1), 8).token_ids == peer.future(3)
    assert peer.ask(peer.future(2), 8).token_ids == peer.future(1)
    for _ in range(3):
        answer = peer.ask(peer.future(2), 8)
        assert (answer.reason, answer.token_ids) == ("context_full", [])
    assert engine.memory.blocks.num_used_blocks == 0
    long = Peer(engine, [*prompt, *prompt[:40]], COUPLED, session_id=2)
    assert [m.reason for m in long.mine(run_idle(engine))] == ["context_full"]
    assert long.ask(long.future(1), 3).reason == "context_full"


# -- out of step -----------------------------------------------------------------------------------


def resyncs(sent):
    return [(m.session_id, m.epoch) for _, m in sent if isinstance(m, Resync)]


def test_unknown_session_and_unknown_epoch_ask_for_resync():
    engine = make_engine()
    engine.submit("a", [Commit(9, 4, 0, 1, [1], 2, 100.0)])
    assert resyncs(engine.step()) == [(9, 4)]
    peer = ready(engine)
    engine.submit("a", [Commit(1, 2, 0, 1, [1], 2, 100.0)])
    assert resyncs(engine.step()) == [(1, 2)]
    assert peer.ask(peer.future(1), 2).token_ids == peer.future(2)


@pytest.mark.parametrize("fault", ["gap", "mismatch"])
def test_resync_then_open_proposes_the_right_tokens(fault):
    engine = make_engine()
    peer = ready(engine)
    neighbour = ready(engine, session_id=2)
    peer.ask(peer.future(3), 3)
    if fault == "gap":
        peer.output += peer.future(2)
        peer.sent_len += 2
    else:
        peer.output[-1] = other(peer.output[-1])
        peer.sent_len -= 1
    peer.commit(peer.future(1), k=3)
    assert resyncs(run_idle(engine)) == [(1, 1)]
    peer.commit(peer.future(1), k=3)  # still on its way when the Resync arrives
    assert resyncs(run_idle(engine)) == [(1, 1)]
    peer.open()
    assert peer.ask(peer.future(1), 4).token_ids == peer.future(4)
    assert neighbour.ask(neighbour.future(1), 4).token_ids == neighbour.future(4)


def test_messages_of_an_older_epoch_are_ignored():
    engine = make_engine()
    peer = ready(engine)
    stale = Commit(1, 1, 0, 1, [5], 3, 100.0)
    peer.open()
    engine.submit("a", [stale])
    sent = run_idle(engine)
    assert [(m.epoch, m.reason) for m in peer.mine(sent)] == [(2, "")]
    peer.epoch = 1
    peer.close()
    assert peer.session is not None
    peer.epoch = 2
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


def test_duplicates_are_answered_once():
    engine = make_engine()
    peer = ready(engine)
    message = peer.commit(peer.future(1), k=3)
    engine.submit("a", [message, message])
    sent = run_idle(engine)
    engine.submit("a", [message, peer.session.opened])
    sent += run_idle(engine)
    (answer,) = peer.mine(sent)
    assert answer.token_ids == peer.future(3)


def test_sessions_of_two_targets_with_one_number_are_two():
    engine = make_engine()
    mine, theirs = ready(engine), ready(engine, prompt=[7, 8, 9], target="b")
    mine.commit(mine.future(1), k=2)
    theirs.commit(theirs.future(1), k=2)
    sent = run_idle(engine)
    for peer in (mine, theirs):
        assert [m.token_ids for m in peer.mine(sent)] == [peer.future(2)]


# -- what cannot be followed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ([], COUPLED),
        ([1, VOCAB_SIZE], COUPLED),
        ([1, -1], COUPLED),
        ([1], SamplingParams(logit_bias={VOCAB_SIZE: 1.0})),
        ([1], SamplingParams(bad_words_token_ids=((VOCAB_SIZE,),))),
    ],
)
def test_ids_beyond_the_drafts_vocabulary_are_declined_by_name(prompt, params):
    engine = make_engine()
    peer = Peer(engine, prompt, params)
    assert [m.reason for m in peer.mine(run_idle(engine))] == ["unsupported"]
    assert peer.ask([3], 2).reason == "unsupported"
    assert engine.executor.plans == []


def test_a_committed_id_beyond_the_vocabulary_ends_drafting_for_that_session():
    engine = make_engine()
    peer, neighbour = ready(engine), ready(engine, session_id=2)
    assert peer.ask([VOCAB_SIZE + 3], 2).reason == "unsupported"
    assert peer.session.block_table == []
    assert neighbour.ask(neighbour.future(1), 2).token_ids == neighbour.future(2)


def test_draining_refuses_new_sessions_and_serves_open_ones():
    engine = make_engine()
    peer = ready(engine)
    engine.drain()
    late = Peer(engine, PROMPT, COUPLED, session_id=2)
    assert [m.reason for m in late.mine(run_idle(engine))] == ["draining"]
    assert peer.ask(peer.future(1), 2).token_ids == peer.future(2)


@MODES
def test_a_failed_pass_declines_and_is_forgotten(params):
    engine = make_engine()
    peer, unready = ready(engine, params=params), Peer(engine, PROMPT, params, session_id=2)
    engine.executor.error = RuntimeError("no")
    peer.commit(peer.future(1), k=3)
    with pytest.raises(RuntimeError):
        engine.step()
    assert [(m.reason, m.round) for m in peer.mine(engine.fail())] == [("failed", 1)]
    assert engine.memory.blocks.num_used_blocks == 0
    engine.executor.error = None
    assert [m.reason for m in unready.mine(run_idle(engine))] == [""]
    assert peer.ask(peer.future(1), 3).token_ids == peer.future(3)


def test_load_tells_how_many_targets_asked_lately():
    clock = Clock()
    engine = make_engine(PoolExecutor(clock=clock), clock=clock)
    one = ready(engine, target="a")
    two = ready(engine, target="b", session_id=2)
    assert engine.load().num_targets == 0
    one.ask([1], 2)
    two.ask([1], 2)
    two.commit([2], 0)  # that is no ask
    assert engine.load().num_targets == 2
    clock.advance(0.7)
    one.ask([2], 2)
    clock.advance(0.7)
    assert engine.load().num_targets == 1
    engine.drop_target("a")
    assert engine.load().num_targets == 0
