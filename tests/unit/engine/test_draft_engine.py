"""The draft engine proposes what the target itself would commit, whatever happens in between.

Draft and target are one model here, so in greedy and coupled mode every proposal must equal the
target's own continuation; a wrong or stale key anywhere would change it.
"""

from __future__ import annotations

import dataclasses

import pytest

from specdec.params import SamplingParams
from tests.unit.engine.draft_harness import (
    BLOCK,
    COUPLED,
    EOS,
    GREEDY,
    MODES,
    PROMPT,
    Clock,
    Peer,
    PoolExecutor,
    make_engine,
    other,
    ready,
    run_idle,
)

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
