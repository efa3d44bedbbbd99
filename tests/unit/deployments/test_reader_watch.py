"""Readers that stop, go on, or never come back, as the gateway and the target see them."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from deployments import reader_watch
from deployments.held_streams import HeldStreams
from deployments.reader_watch import ReaderWatch
from specdec.errors import DeadlineError
from specdec.sequence import SequenceOutput

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(reader_watch, "PERIOD_S", 0.01)
    monkeypatch.setattr(reader_watch, "BEHIND_AFTER_S", 0.05)


async def until(condition):
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


class Call:
    def __init__(self) -> None:
        self.was_cancelled = False

    def cancel(self) -> None:
        self.was_cancelled = True


class Target:
    """A target without a network: an endless stream through an eager, unbounded transport, as
    Serve's is."""

    def __init__(self) -> None:
        self.held = HeldStreams()
        self.words: list[str] = []
        self.num_generated = 0
        self.transport: asyncio.Queue[SequenceOutput] = asyncio.Queue()

    async def hold(self, stream_ids):
        self.words.append("hold")
        return self.held.hold(stream_ids)

    async def release(self, stream_ids):
        self.words.append("release")
        self.held.release(stream_ids)

    async def run(self, stream_id):
        async def endless():
            while True:
                await asyncio.sleep(0.001)
                self.num_generated += 1
                yield SequenceOutput(1, "r", [self.num_generated])

        async with aclosing(self.held.passed(stream_id, endless())) as outputs:
            async for output in outputs:
                self.transport.put_nowait(output)


@pytest.fixture
async def target():
    target = Target()
    task = asyncio.create_task(target.run("s"))
    yield target
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def read(target, watch, taken, may_read):
    """What the gateway does for a response, its reader reading while the event is set."""

    async def response():
        reading = watch.begin(["s"])
        reading.calls.append(target.call)
        try:
            while True:
                output = await target.transport.get()
                reading.give()
                await may_read.wait()
                watch.taken(reading)
                taken.extend(output.token_ids)
        finally:
            watch.end(reading)

    target.call = Call()
    return asyncio.create_task(response())


async def test_a_reader_that_stops_stops_its_stream_and_gets_every_output_when_it_goes_on(target):
    taken, may_read = [], asyncio.Event()
    may_read.set()
    task = read(target, ReaderWatch(target, WAIT_S), taken, may_read)
    await until(lambda: len(taken) > 20)
    assert target.words == []
    may_read.clear()
    await until(lambda: target.words == ["hold"])
    await asyncio.sleep(0.05)
    stopped_at = target.num_generated
    await asyncio.sleep(0.2)
    assert target.num_generated <= stopped_at + 1
    may_read.set()
    await until(lambda: len(taken) > stopped_at + 20)
    assert target.words == ["hold", "release"]
    assert taken == list(range(1, len(taken) + 1))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_reader_that_never_comes_back_ends_its_request(target):
    taken, may_read = [], asyncio.Event()
    task = read(target, ReaderWatch(target, 0.2), taken, may_read)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT_S)
    assert target.call.was_cancelled
    assert taken == []


async def test_who_comes_back_just_too_late_hears_why():
    watch = ReaderWatch(Target(), 0.2)
    reading = watch.begin(["s"])
    reading.num_taken += 1
    reading.given_s = time.monotonic()  # by nobody's task
    await until(lambda: reading.was_given_up)
    with pytest.raises(DeadlineError, match=r"not read for 0\.2 seconds"):
        watch.taken(reading)
    watch.end(reading)


async def test_a_slow_but_steady_reader_is_never_given_up(target):
    """Each output takes it longer than it takes to be behind; all of them, far longer than the
    time after which a reader is given up."""
    watch, num_taken = ReaderWatch(target, 1.0), 0
    reading = watch.begin(["s"])
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2.5:
        await target.transport.get()
        reading.give()
        await asyncio.sleep(0.1)
        watch.taken(reading)
        num_taken += 1
    assert not reading.was_given_up
    assert target.num_generated < 50 * num_taken
    watch.end(reading)


async def test_a_hold_that_is_answered_after_the_reader_has_caught_up_is_let_go_at_once():
    class Slow(Target):
        async def hold(self, stream_ids):
            await answer.wait()
            return 1

    answer, target = asyncio.Event(), Slow()
    watch = ReaderWatch(target, WAIT_S)
    reading = watch.begin(["s"])
    reading.give()
    await until(lambda: reading.is_held)
    watch.taken(reading)
    answer.set()
    await until(lambda: target.words == ["release"])
    assert not reading.is_held
    watch.end(reading)


def test_streams_of_other_replicas_are_passed_over():
    held = HeldStreams()
    assert held.hold(["elsewhere"]) == 0
    held.release(["elsewhere"])
