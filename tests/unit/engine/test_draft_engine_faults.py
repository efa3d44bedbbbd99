"""The draft engine out of step with a target, or asked for what it cannot follow."""

from __future__ import annotations

import pytest

from specdec.params import SamplingParams
from specdec.speculation.messages import Commit, Resync
from tests.unit.engine.draft_harness import (
    COUPLED,
    MODES,
    PROMPT,
    VOCAB_SIZE,
    Clock,
    Peer,
    PoolExecutor,
    make_engine,
    other,
    ready,
    run_idle,
)

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
    assert peer.session is None
    assert engine.memory.num_held("a") == len(neighbour.session.block_table)
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
