"""What a hostile target can make a draft keep and do: bounded, and at no other target's cost."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from specdec.config import DraftLimits
from specdec.engine import draft_inbox
from specdec.engine.draft_books import params_size
from specdec.engine.draft_inbox import Inbox
from specdec.engine.draft_thread import DraftThread
from specdec.params import SamplingParams
from specdec.sequence import Verification
from specdec.speculation.messages import Close, Commit, Hello, Open
from tests.unit.engine.draft_harness import (
    COUPLED,
    PROMPT,
    VOCAB_SIZE,
    Clock,
    Peer,
    PoolExecutor,
    make_engine,
    ready,
    run_idle,
)

LIMITS = DraftLimits(
    max_sessions=6,
    max_sessions_per_target=4,
    max_text_tokens=80,
    max_text_tokens_per_target=50,
)


def reasons(peer: Peer) -> list[str]:
    return [message.reason for message in peer.mine(run_idle(peer.engine))]


def test_sessions_are_counted_per_target_and_in_total() -> None:
    engine = make_engine(limits=LIMITS)
    for target, admitted in (("a", 4), ("b", 2)):
        for session_id in range(5):
            peer = Peer(engine, [1, 2], COUPLED, target=target, session_id=session_id)
            expected = "" if session_id < admitted else "over_limit"
            assert reasons(peer) == [expected]
            assert (peer.session is not None) == (session_id < admitted)
    engine.drop_target("a")
    assert reasons(Peer(engine, [1, 2], COUPLED, target="b", session_id=9)) == [""]


def test_text_is_counted_per_target_and_in_total_and_nothing_is_kept_beyond() -> None:
    engine = make_engine(limits=LIMITS)
    assert reasons(Peer(engine, [1] * 40, COUPLED, session_id=1)) == [""]
    assert reasons(Peer(engine, [1] * 11, COUPLED, session_id=2)) == ["over_limit"]
    assert reasons(Peer(engine, [1] * 40, COUPLED, session_id=3, target="b")) == [""]
    assert reasons(Peer(engine, [1], COUPLED, session_id=4, target="b")) == ["over_limit"]
    assert [session.key for session in engine.sessions.all()] == [("a", 1), ("b", 3)]


def test_a_text_that_grows_beyond_the_bound_is_let_go() -> None:
    engine = make_engine(limits=LIMITS)
    peer, neighbour = ready(engine, [1] * 40), ready(engine, [1] * 4, session_id=2)
    assert peer.ask([1] * 7, 2).reason == "over_limit"
    assert peer.session is None
    assert peer.ask([1], 2).reason == "over_limit"  # known by name, without its text
    assert neighbour.ask(neighbour.future(1), 2).token_ids == neighbour.future(2)
    assert reasons(Peer(engine, [1] * 40, COUPLED, session_id=3)) == [""]


def test_parameters_count_as_text() -> None:
    assert params_size(SamplingParams(logit_bias={1: 1.0, 2: 1.0})) == 6
    assert params_size(SamplingParams(allowed_token_ids=(1, 2, 3), stop_token_ids=(4,))) == 4
    assert params_size(SamplingParams(bad_words_token_ids=((1, 2), (3,)))) == 3
    assert params_size(SamplingParams(stop=("x" * 64,))) == 2
    engine = make_engine(limits=LIMITS)
    biased = replace(COUPLED, logit_bias=dict.fromkeys(range(20), 1.0))
    assert reasons(Peer(engine, [1], biased)) == ["over_limit"]


@pytest.mark.parametrize("prompt", [[VOCAB_SIZE] * 30, [1] * 300])
def test_what_is_declined_keeps_no_text(prompt) -> None:
    """Declined texts were kept until the target closed them: 60 of 2 MiB each took 117 MiB."""
    engine = make_engine(limits=DraftLimits(max_text_tokens_per_target=400))
    for session_id in range(60):
        peer = Peer(engine, prompt, COUPLED, session_id=session_id)
        assert reasons(peer) in (["unsupported"], ["context_full"])
        assert peer.session is None
    assert engine.sessions.all() == []
    assert reasons(Peer(engine, [1] * 200, COUPLED, session_id=99)) == [""]  # it has all the room
    peer.close()
    run_idle(engine)
    engine.sessions.check_books()


def test_names_of_declined_sessions_are_bounded_too() -> None:
    engine = make_engine(limits=LIMITS)
    for session_id in range(50):
        Peer(engine, [VOCAB_SIZE], COUPLED, session_id=session_id)
    answers = [message.reason for _, message in run_idle(engine)]
    assert answers == ["unsupported"] * 4 + ["over_limit"] * 46


def test_a_pool_that_one_target_fills_is_shared_with_one_that_comes() -> None:
    """Up to an equal share, from what is beyond one; the idle part was nobody's loss before."""
    clock = Clock()
    engine = make_engine(PoolExecutor(num_blocks=8), clock)
    greedy = [ready(engine, [i + 1] * 6, session_id=i) for i in range(4)]
    assert engine.memory.blocks.num_free_blocks == 0
    clock.advance(1.0)
    late = ready(engine, [1] * 11, target="b")
    assert late.ask(late.future(1), 2).token_ids == late.future(2)
    assert engine.memory.num_held("b") == 4
    assert engine.memory.num_held("a") == 4
    # Nobody loses what is within the own share: the one who lost cannot take it back.
    lost = next(peer for peer in greedy if not peer.session.block_table)
    assert lost.ask(lost.future(1), 1).reason == "kv_full"
    assert engine.memory.num_held("b") == 4


def test_what_is_asked_right_now_is_taken_last_and_answered() -> None:
    engine = make_engine(PoolExecutor(num_blocks=4))
    peers = [ready(engine, [i + 1] * 6, session_id=i) for i in range(2)]
    peers[0].commit(peers[0].future(1), k=1)
    late = Peer(engine, [1] * 6, COUPLED, target="b")
    sent = run_idle(engine)
    assert [m.reason for m in peers[1].mine(sent)] == ["evicted"]
    assert [m.token_ids for m in peers[0].mine(sent)] == [peers[0].future(1)]
    assert [m.reason for m in late.mine(sent)] == [""]


def test_a_target_puts_no_more_before_a_pass_than_fits_it() -> None:
    """However many sessions it has asked for: looking at them costs the others time."""
    executor = PoolExecutor(num_blocks=64)
    engine = make_engine(executor, max_num_sequences=3)
    peers = [ready(engine, [i + 1] * 3, session_id=i) for i in range(12)]
    looked_at = []
    reserve = engine.memory.reserve
    engine.memory.reserve = lambda s, *rest: looked_at.append(s.key) or reserve(s, *rest)
    for peer in peers:
        peer.commit(peer.future(1), k=1)
    engine.step()
    assert len(looked_at) == 3


def commits(num: int, num_tokens: int = 0) -> list[Commit]:
    return [Commit(i, 1, 0, 1, [1] * num_tokens, 0, 0.0) for i in range(num)]


def test_a_turn_takes_a_bounded_part_of_what_a_target_sent() -> None:
    inbox = Inbox()
    inbox.put(commits(3 * draft_inbox.MAX_PER_TURN))
    turns = []
    while inbox:
        turns.append(len(inbox.take()))
    assert turns == [draft_inbox.MAX_PER_TURN] * 3
    inbox.put(commits(4, num_tokens=draft_inbox.MAX_PER_TURN * draft_inbox.TOKENS_PER_RECORD // 2))
    assert len(inbox.take()) == 1
    whole = Open(1, 1, [1] * 10**6, [], COUPLED, 0, Verification.COUPLED)
    inbox.put([whole])
    taken = [message for _ in range(4) for message in inbox.take()]
    assert taken[-1] is whole  # however large, and in its turn


def test_who_sends_faster_than_is_looked_at_waits() -> None:
    inbox = Inbox()
    inbox.put(commits(draft_inbox.MAX_WAITING))
    assert inbox.behind() is None
    inbox.put(commits(1))
    behind = inbox.behind()
    assert behind is not None
    assert not behind.done()
    inbox.take()
    assert behind.done()
    inbox.put(commits(draft_inbox.MAX_WAITING))
    left = inbox.behind()
    assert left is not None
    left.cancel()
    inbox.let_go()  # nobody waits any more, and nothing is raised


class Delivered:
    """A target of a DraftThread."""

    def __init__(self, thread: DraftThread, name: str) -> None:
        self.messages: list = []
        thread.attach(name, Hello(name, 1, 1, 1, "tiny", VOCAB_SIZE), self.messages.extend)


def test_a_flood_of_one_target_does_not_stand_before_anothers_ask() -> None:
    """Before it is answered the draft looks at a few turns of the flood, not at all of it."""
    engine = make_engine(clock=time.monotonic)
    thread = DraftThread(engine, ["x"] * VOCAB_SIZE)
    honest = Delivered(thread, "honest")
    Delivered(thread, "hostile")
    thread.submit("honest", [Open(1, 1, PROMPT, [], COUPLED, 11, Verification.COUPLED)])
    deadline_s = time.monotonic() + 60
    while not honest.messages and time.monotonic() < deadline_s:
        time.sleep(0.001)
    num_looked_at = 0
    submit = engine.submit

    def watch(target, messages) -> None:
        nonlocal num_looked_at
        num_looked_at += len(messages) if target == "hostile" else 0
        submit(target, messages)

    engine.submit = watch
    thread.submit("hostile", commits(100_000))
    asked_at = num_looked_at
    thread.submit("honest", [Commit(1, 1, 0, 1, [3], 2, 60_000.0)])
    while len(honest.messages) < 2 and time.monotonic() < deadline_s:
        time.sleep(0)
    num_before_answer = num_looked_at - asked_at
    assert honest.messages[1].token_ids
    # Two passes of drafting with a turn before each, and what was looked at before we looked.
    assert num_before_answer <= 20 * draft_inbox.MAX_PER_TURN < 100_000
    thread.drop_target("hostile")
    assert thread.behind("hostile") is None
    assert thread.stop(60)


def test_closing_frees_a_place() -> None:
    engine = make_engine(limits=LIMITS)
    for session_id in range(4):
        Peer(engine, [1], COUPLED, session_id=session_id)
    engine.submit("a", [Close(0, 1)])
    assert reasons(Peer(engine, [1], COUPLED, session_id=7)) == [""]
