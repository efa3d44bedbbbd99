"""The engine on its own thread: streams, aborts, refusals, and how every stream ends."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing

import pytest

from specdec.engine import AsyncEngine
from specdec.engine.step_watch import StepWatch
from specdec.errors import (
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from tests.unit.engine.engine_harness import (
    OFF,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    token_ids,
)

PROMPT = random_prompt(9, seed=2)
PARAMS = {"temperature": 0.0, "ignore_eos": True}
WAIT_S = 60.0


@pytest.fixture
def engine(tiny_llama):
    return make_engine(tiny_llama)


@pytest.fixture
def async_engine(engine):
    running = AsyncEngine(engine)
    yield running
    running.shutdown()


async def collect(async_engine, wanted):
    return [output async for output in async_engine.generate(wanted)]


async def until(condition):
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


def slow_down(engine, seconds):
    execute = engine.executor.execute

    def slow(plan):
        time.sleep(seconds)
        return execute(plan)

    engine.executor.execute = slow


async def test_streams_are_the_engines_own_and_run_together(tiny_llama, async_engine):
    plain = make_engine(tiny_llama)
    prompts = [random_prompt(5 + i, seed=i) for i in range(4)]
    expected = [generate(plain, p, max_tokens=12, speculation=OFF, **PARAMS) for p in prompts]
    streams = await asyncio.gather(
        *(
            collect(
                async_engine,
                request(p, f"r{i}", max_tokens=12, speculation=fixed(i), **PARAMS),
            )
            for i, p in enumerate(prompts)
        )
    )
    assert [token_ids(outputs) for outputs in streams] == expected
    for i, outputs in enumerate(streams):
        assert {output.request_id for output in outputs} == {f"r{i}"}
        ends = [output.finish_reason for output in outputs]
        assert ends == [None] * (len(ends) - 1) + ["length"]


async def test_leaving_a_stream_frees_its_blocks(engine, async_engine):
    wanted = request(PROMPT, max_tokens=400, speculation=OFF, **PARAMS)
    async with aclosing(async_engine.generate(wanted)) as outputs:
        async for _ in outputs:
            assert engine.block_manager.num_used_blocks > 0
            break
    await until(lambda: not engine.has_work)
    assert engine.block_manager.num_used_blocks == 0
    assert engine.counters.finished == {"abort": 1}


async def test_leaving_before_admission_keeps_nothing(engine, async_engine):
    """The caller is gone before the engine's thread has looked at its request."""
    gate = threading.Event()
    async_engine._send(lambda: gate.wait(WAIT_S))
    task = asyncio.create_task(
        collect(async_engine, request(PROMPT, max_tokens=400, speculation=OFF, **PARAMS))
    )
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await until(lambda: engine.counters.finished["abort"] == 1)
    assert not engine.has_work
    assert engine.block_manager.num_used_blocks == 0


async def test_a_full_queue_refuses_at_once(tiny_llama):
    running = AsyncEngine(make_engine(tiny_llama, max_queue=1))
    gate = threading.Event()
    running._send(lambda: gate.wait(WAIT_S))
    first, second = (
        asyncio.create_task(collect(running, request(PROMPT, name, max_tokens=3, **PARAMS)))
        for name in ("first", "second")
    )
    await asyncio.sleep(0.05)  # both are queued before the engine looks at either
    gate.set()
    try:
        with pytest.raises(OverloadedError):
            await asyncio.wait_for(second, WAIT_S)
        assert (await asyncio.wait_for(first, WAIT_S))[-1].finish_reason == "length"
    finally:
        running.shutdown()


async def test_a_bad_request_is_refused_by_field_and_harms_nobody(async_engine):
    with pytest.raises(InvalidRequestError) as caught:
        await collect(async_engine, request(PROMPT, temperature=-1.0))
    assert caught.value.field == "temperature"
    outputs = await collect(async_engine, request(PROMPT, max_tokens=2, **PARAMS))
    assert outputs[-1].finish_reason == "length"


async def test_a_lost_executor_ends_every_stream(engine, async_engine):
    execute, num_left = engine.executor.execute, 4

    def failing(plan):
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise RuntimeError("rank 2 is lost")
        return execute(plan)

    engine.executor.execute = failing
    streams = await asyncio.wait_for(
        asyncio.gather(
            *(
                collect(async_engine, request(PROMPT, f"r{i}", max_tokens=50, **PARAMS))
                for i in range(3)
            )
        ),
        WAIT_S,
    )
    for outputs in streams:
        assert outputs[-1].finish_reason == "error"
        assert isinstance(outputs[-1].error, UnavailableError)
        assert "rank 2 is lost" in str(outputs[-1].error)
    assert engine.block_manager.num_used_blocks == 0
    assert isinstance(async_engine.failure, UnavailableError)
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(collect(async_engine, request(PROMPT)), WAIT_S)


async def test_a_request_past_its_time_ends_with_deadline_exceeded(engine, async_engine):
    slow_down(engine, 0.02)
    late = request(PROMPT, "late", max_tokens=400, speculation=OFF, **PARAMS)
    late.timeout_s = 0.15
    other = request(PROMPT, "other", max_tokens=12, speculation=OFF, **PARAMS)
    outputs, others = await asyncio.gather(
        collect(async_engine, late), collect(async_engine, other)
    )
    assert isinstance(outputs[-1].error, DeadlineError)
    assert outputs[-1].finish_reason == "error"
    assert len(token_ids(outputs)) < 400
    assert others[-1].finish_reason == "length"
    assert engine.block_manager.num_used_blocks == 0


async def test_shutdown_ends_streams_and_refuses_later_requests(engine, async_engine):
    slow_down(engine, 0.005)
    stream = async_engine.generate(request(PROMPT, max_tokens=400, speculation=OFF, **PARAMS))
    outputs = [await anext(stream)]
    await asyncio.to_thread(async_engine.shutdown)
    outputs += [output async for output in stream]
    assert isinstance(outputs[-1].error, UnavailableError)
    assert engine.block_manager.num_used_blocks == 0
    with pytest.raises(UnavailableError, match="shutting down"):
        await asyncio.wait_for(collect(async_engine, request(PROMPT)), WAIT_S)


async def test_a_bug_in_one_admission_ends_neither_thread_nor_others(engine, async_engine):
    add_request = engine.add_request
    engine.add_request = lambda wanted: (_ for _ in ()).throw(TypeError("not a set"))
    with pytest.raises(TypeError):
        await asyncio.wait_for(collect(async_engine, request(PROMPT, **PARAMS)), WAIT_S)
    engine.add_request = add_request
    outputs = await collect(async_engine, request(PROMPT, max_tokens=3, **PARAMS))
    assert outputs[-1].finish_reason == "length"
    assert async_engine.is_alive


async def test_what_a_step_ended_before_it_failed_still_hears_of_its_end(engine, async_engine):
    """One request expires in the very step whose run then fails: its end is lost with the step."""
    first_step, gate = threading.Event(), threading.Event()
    execute = engine.executor.execute

    def fail_once_expired(plan):
        if not first_step.is_set():
            first_step.set()
            (sequence,) = (
                live.sequence
                for live in engine._live.values()
                if live.sequence.request_id == "expiring"
            )
            sequence.deadline_s = time.monotonic()
            return execute(plan)
        raise RuntimeError("the device is gone")

    engine.executor.execute = fail_once_expired
    async_engine._send(lambda: gate.wait(WAIT_S))
    running = asyncio.gather(
        collect(async_engine, request(PROMPT, "expiring", max_tokens=400, **PARAMS)),
        collect(async_engine, request(PROMPT, "lasting", max_tokens=400, **PARAMS)),
    )
    await asyncio.sleep(0.05)  # both are queued before the engine looks at either
    gate.set()
    for outputs in await asyncio.wait_for(running, WAIT_S):
        assert outputs[-1].finish_reason == "error"
        assert isinstance(outputs[-1].error, UnavailableError)


async def test_only_a_step_that_stands_still_is_told(engine, async_engine, monkeypatch):
    """A replica that was idle for long is not taken for a stuck one at its next request."""
    monkeypatch.setattr(async_engine, "_watch", StepWatch(idle_s=0.3, max_gap_s=0.05))
    step, entered, gate = engine.step, threading.Event(), threading.Event()

    def observed():
        entered.set()
        assert gate.wait(WAIT_S)
        return step()

    for _ in range(20):  # idle: far longer than a step may stand
        assert async_engine.standstill() is None
        await asyncio.sleep(0.02)
    engine.step = observed
    running = asyncio.create_task(collect(async_engine, request(PROMPT, max_tokens=1, **PARAMS)))
    assert await asyncio.to_thread(entered.wait, WAIT_S)
    assert async_engine.standstill() is None
    await until(lambda: async_engine.standstill() is not None)
    assert "stands still" in async_engine.standstill()
    gate.set()
    await asyncio.wait_for(running, WAIT_S)
    await until(lambda: async_engine.standstill() is None)
