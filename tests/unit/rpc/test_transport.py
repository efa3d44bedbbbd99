"""The event loop that gRPC gets, and the noise that it must not make."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from specdec.rpc.transport import LoopThread, quiet_poller_noise, until_one_ends


def test_only_the_pollers_noise_is_dropped(caplog) -> None:
    loop = asyncio.new_event_loop()
    quiet_poller_noise(loop)
    poller = "Exception in callback PollerCompletionQueue._handle_events(<_UnixSelector...>)()"
    with caplog.at_level(logging.ERROR, "asyncio"):
        loop.call_exception_handler({"message": poller, "exception": BlockingIOError(11, "x")})
        assert caplog.records == []
        loop.call_exception_handler({"message": poller, "exception": ValueError("x")})
        loop.call_exception_handler({"message": "other", "exception": BlockingIOError(11, "x")})
    assert len(caplog.records) == 2
    loop.close()


def test_a_handler_that_was_there_keeps_its_say() -> None:
    loop = asyncio.new_event_loop()
    heard: list[str] = []
    loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
    quiet_poller_noise(loop)
    loop.call_exception_handler({"message": "mine", "exception": ValueError()})
    assert heard == ["mine"]
    loop.close()


def test_a_loop_thread_ends_with_its_tasks() -> None:
    thread = LoopThread("test-loop")
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def start() -> None:
        thread.task = asyncio.get_running_loop().create_task(forever())

    thread.run(start(), 5.0)
    thread.stop()
    assert ended.is_set()
    assert thread.loop.is_closed()


def test_a_call_on_the_loop_has_a_deadline() -> None:
    thread = LoopThread("test-loop")
    with pytest.raises(TimeoutError):
        thread.run(asyncio.sleep(30), 0.05)
    thread.stop()


async def test_the_first_to_end_ends_all() -> None:
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await until_one_ends(forever(), asyncio.sleep(0))
    assert cancelled.is_set()


async def test_a_fault_is_raised_after_the_others_are_gone() -> None:
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until_one_ends(forever(), fail())
    assert cancelled.is_set()
