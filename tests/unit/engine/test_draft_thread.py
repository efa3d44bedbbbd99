"""The draft engine on its thread: messages from any thread, answers to the right target, errors
and endings that leave nothing hanging."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time

import pytest

from specdec.engine import draft_engine, draft_thread
from specdec.engine.draft_thread import BusyMeter, DraftThread
from specdec.engine.step_watch import StepWatch
from specdec.errors import UnavailableError
from specdec.sequence import Verification
from specdec.speculation.messages import Close, Commit, Hello, Open
from tests.unit.engine.draft_harness import (
    COUPLED,
    VOCAB_SIZE,
    Clock,
    PoolExecutor,
    make_engine,
    run_idle,
    target_token,
)

PROMPT = [5, 6, 7, 8]
TIMEOUT_S = 60.0
POISON = 666


def hello(name):
    return Hello(name, 1, 1, 1, "tiny", VOCAB_SIZE)


def opened(session_id=1):
    return Open(session_id, 1, PROMPT, [], COUPLED, 11, Verification.COUPLED)


def commit(round=1, k=3, token_ids=(3,), base_len=0, session_id=1):
    return Commit(session_id, 1, base_len, round, list(token_ids), k, 60_000.0)


def future(text, num_tokens):
    text = list(text)
    for _ in range(num_tokens):
        text.append(target_token(text, len(PROMPT), COUPLED, 11))
    return text[-num_tokens:]


@pytest.fixture
def thread(monkeypatch):
    monkeypatch.setattr(draft_thread, "FAILURE_PAUSE_S", 0.001)
    made = DraftThread(make_engine(clock=time.monotonic), ["x"] * VOCAB_SIZE)
    yield made
    assert made.stop(TIMEOUT_S)


class Target:
    """A target's end: what was delivered, batch by batch."""

    def __init__(self, thread, name):
        self.name, self.batches = name, queue.Queue()
        thread.attach(name, hello(name), self.batches.put)

    def next(self):
        return self.batches.get(timeout=TIMEOUT_S)


def test_sessions_of_one_pass_come_together_and_targets_stay_apart(thread):
    a, b = Target(thread, "a"), Target(thread, "b")
    thread.submit("a", [opened(1), opened(2)])
    thread.submit("b", [opened(1)])
    assert {m.session_id for m in a.next()} <= {1, 2}
    b.next()
    thread.submit("a", [commit(session_id=1), commit(session_id=2)])
    thread.submit("b", [commit(token_ids=[9])])
    answers = []
    while len(answers) < 2:
        answers += [m for m in a.next() if m.token_ids]
    assert [m.token_ids for m in answers] == [future([*PROMPT, 3], 3)] * 2
    (answer,) = b.next()
    assert answer.token_ids == future([*PROMPT, 9], 3)


def test_many_threads_may_submit(thread):
    targets = [Target(thread, f"t{i}") for i in range(4)]

    def speak(target):
        thread.submit(target.name, [opened()])
        text, output = list(PROMPT), []
        for round in range(1, 11):
            new = future(text, 1)
            thread.submit(target.name, [commit(round, 2, new, len(output))])
            text, output = text + new, output + new

    speakers = [threading.Thread(target=speak, args=(target,)) for target in targets]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join(TIMEOUT_S)
    expected = future([*PROMPT, *future(PROMPT, 10)], 2)
    for target in targets:
        while not any(m.round == 10 and m.token_ids == expected for m in target.next()):
            pass


def test_nothing_is_delivered_after_drop_target(thread):
    a = Target(thread, "a")
    thread.submit("a", [opened()])
    a.next()
    thread.submit("a", [commit()])
    thread.drop_target("a")
    num_delivered = a.batches.qsize()
    b = Target(thread, "b")
    thread.submit("b", [opened(), Close(1, 1), commit()])
    b.next()
    assert a.batches.qsize() == num_delivered
    assert thread.load().num_free_blocks == 64


def test_a_failed_pass_declines_and_the_thread_goes_on(thread):
    a = Target(thread, "a")
    thread.submit("a", [opened()])
    a.next()
    executor = thread._engine.executor
    executor.num_errors, executor.error = 1, RuntimeError("no")
    thread.submit("a", [commit()])
    assert [(m.reason, m.round) for m in a.next()] == [("failed", 1)]
    thread.check_health()
    thread.submit("a", [commit(2, 3, [4], 1)])
    while not any(m.token_ids == future([*PROMPT, 3, 4], 3) for m in a.next()):
        pass


def test_an_error_while_sampling_is_the_sessions_and_not_the_models(thread, monkeypatch):
    real = draft_engine.sample_draft

    def sample_draft(logits, items):
        if any(item.seed == POISON for item in items):
            raise IndexError("no")
        return real(logits, items)

    monkeypatch.setattr(draft_engine, "sample_draft", sample_draft)
    a = Target(thread, "a")
    thread.submit("a", [opened(1)])
    told = [message for message in a.next() if message.session_id == 1]
    for session_id in range(2, 3 + draft_thread.MAX_CONSECUTIVE_FAILURES):
        poisoned = dataclasses.replace(opened(session_id), seed=POISON)
        thread.submit("a", [poisoned, commit(session_id=session_id)])
        while not told or (told[-1].session_id, told[-1].round) != (session_id, 1):
            told += a.next()
        assert told[-1].reason == "unsupported"
    thread.check_health()
    thread.submit("a", [commit(session_id=1), commit(2, base_len=1, session_id=2)])
    answers = {}
    while set(answers) != {1, 2}:
        answers.update({m.session_id: m for m in a.next()})
    assert answers[1].token_ids == future([*PROMPT, 3], 3)
    assert answers[2].reason == "unsupported"
    assert answers[2].round == 2  # and not drafted for again
    assert thread._num_failures == 0


def test_a_pass_with_one_poisoned_session_serves_the_others(monkeypatch):
    real = draft_engine.sample_draft

    def sample_draft(logits, items):
        if any(item.seed == POISON for item in items):
            raise IndexError("no")
        return real(logits, items)

    monkeypatch.setattr(draft_engine, "sample_draft", sample_draft)
    engine = make_engine()
    poisoned = dataclasses.replace(opened(2), seed=POISON)
    engine.submit("a", [opened(1), poisoned, commit(session_id=1), commit(session_id=2)])
    answers = {message.session_id: message for _, message in run_idle(engine)}
    assert answers[1].token_ids == future([*PROMPT, 3], 3)
    assert answers[2].reason == "unsupported"


def test_a_target_without_a_vocabulary_is_refused_before_it_reaches_the_thread(thread):
    with pytest.raises(ValueError, match="vocab_size 0"):
        thread.attach("none", Hello("none", 1, 1, 1, "tiny", 0), lambda messages: None)
    thread.check_health()


def test_warm_up_fails_where_sampling_does(thread, monkeypatch):
    def sample_draft(logits, items):
        raise IndexError("no")

    monkeypatch.setattr(draft_engine, "sample_draft", sample_draft)
    with pytest.raises(RuntimeError, match="sampling"):
        thread.warm_up(TIMEOUT_S)


@pytest.mark.parametrize("error", [RuntimeError("no"), UnavailableError("rank 2 is lost")])
def test_a_lost_model_is_unhealthy_and_declines_at_once(thread, error):
    a = Target(thread, "a")
    thread._engine.executor.error = error
    thread.submit("a", [opened()])
    deadline_s = time.monotonic() + TIMEOUT_S
    while thread._fault is None and time.monotonic() < deadline_s:
        time.sleep(0.001)
    with pytest.raises(UnavailableError, match=str(error)):
        thread.check_health()
    for round in (1, 2):
        thread.submit("a", [commit(round, base_len=round - 1)])
        while not any((m.reason, m.round) == ("failed", round) for m in a.next()):
            pass


def test_a_target_that_cannot_be_delivered_to_hurts_nobody_else(thread):
    def broken(messages):
        raise OSError("gone")

    thread.attach("a", hello("a"), broken)
    b = Target(thread, "b")
    for name in "ab":
        thread.submit(name, [opened()])
    b.next()
    thread.check_health()


def test_a_delivery_may_drop_its_own_target(thread):
    done = threading.Event()

    def deliver(messages):
        thread.drop_target("a")
        done.set()

    thread.attach("a", hello("a"), deliver)
    thread.submit("a", [opened()])
    assert done.wait(TIMEOUT_S)


def test_a_stuck_pass_is_unhealthy_and_stop_keeps_its_deadline(monkeypatch):
    monkeypatch.setattr(draft_thread, "StepWatch", lambda: StepWatch(idle_s=0.05))
    release = threading.Event()

    entered = threading.Event()

    class Hanging(PoolExecutor):
        def execute(self, plan):
            entered.set()
            assert release.wait(TIMEOUT_S)
            return super().execute(plan)

    thread = DraftThread(make_engine(Hanging(), time.monotonic), [])
    thread.attach("a", hello("a"), lambda messages: None)
    thread.submit("a", [opened()])
    assert entered.wait(TIMEOUT_S)
    thread.check_health()
    time.sleep(0.06)
    with pytest.raises(UnavailableError, match="stands still"):
        thread.check_health()
    before_s = time.monotonic()
    assert not thread.stop(0.05)
    assert time.monotonic() - before_s < TIMEOUT_S / 2
    release.set()
    assert thread.stop(TIMEOUT_S)
    with pytest.raises(UnavailableError, match="not running"):
        thread.check_health()


def test_warm_up_then_the_backend_says_who_it_is(thread):
    thread.warm_up(TIMEOUT_S)
    assert thread.info().vocab_size == len(thread.vocabulary()) == VOCAB_SIZE
    load = thread.load()
    assert load.num_free_blocks == 64
    assert load.draft_step_ms > 0
    assert 0 <= load.idle_fraction <= 1


def test_draining_refuses_new_sessions(thread):
    a = Target(thread, "a")
    thread.drain()
    thread.submit("a", [opened()])
    assert [m.reason for m in a.next()] == ["draining"]


def test_busy_fraction_follows_the_last_second():
    clock = Clock()
    meter = BusyMeter(clock)
    clock.advance(3.0)
    assert meter.busy_fraction == 0
    for _ in range(200):  # busy a quarter of the time
        meter.switch(is_busy=True)
        clock.advance(0.025)
        meter.switch(is_busy=False)
        clock.advance(0.075)
    assert meter.busy_fraction == pytest.approx(0.25, abs=0.03)
    clock.advance(5.0)
    assert meter.busy_fraction < 0.01
