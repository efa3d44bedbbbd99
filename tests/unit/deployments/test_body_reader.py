"""Bodies that do not end, come slowly, or whose sender leaves."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.requests import ClientDisconnect, Request

from deployments.body_reader import BodyReader
from deployments.gateway import http_app
from deployments.openai_responses import error_body
from specdec.errors import BodyTimeoutError, InvalidRequestError, OverloadedError

WAIT_S = 60.0


def request_of(parts, forever: bool = False) -> Request:
    """A request whose body comes in these parts; `forever`: and then nothing more."""
    left = list(parts)

    async def receive():
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left or forever)}
        await asyncio.sleep(WAIT_S)
        raise AssertionError("the body was waited for without end")

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def leaving() -> Request:
    async def receive():
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


async def test_a_body_is_read_whole():
    assert await BodyReader(100, WAIT_S, 1).read(request_of([b"one ", b"two"]), "t") == b"one two"


async def test_a_body_without_end_is_a_408_that_says_so():
    reader = BodyReader(100, 0.05, 1)
    with pytest.raises(BodyTimeoutError) as caught:
        await reader.read(request_of([b"one"], forever=True), "t")
    status, body = error_body(caught.value)
    assert status == 408
    assert (body["error"]["param"], body["error"]["code"]) == ("body", 408)
    assert reader.num_reading == 0


async def test_half_sent_bodies_of_one_tenant_are_bounded_and_keep_nobody_else_out():
    reader = BodyReader(100, WAIT_S, 2)
    held = [
        asyncio.create_task(reader.read(request_of([b"one"], forever=True), "a")) for _ in range(2)
    ]
    await asyncio.sleep(0)
    assert reader.num_reading == 2
    with pytest.raises(OverloadedError):
        await reader.read(request_of([b"one"]), "a")
    assert await reader.read(request_of([b"one"]), "b") == b"one"
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert reader.num_reading == 0
    assert await reader.read(request_of([b"one"]), "a") == b"one"


async def test_a_body_past_the_limit_is_refused_before_its_end_comes():
    with pytest.raises(InvalidRequestError, match="larger than 4 bytes"):
        await BodyReader(4, WAIT_S, 1).read(request_of([b"one", b"two"], forever=True), "t")


async def test_a_sender_who_leaves_is_forgotten_without_a_word_in_the_log(caplog):
    reader = BodyReader(100, WAIT_S, 1)
    with pytest.raises(ClientDisconnect):
        await reader.read(leaving(), "t")
    assert reader.num_reading == 0
    handler = http_app.exception_handlers[ClientDisconnect]
    with caplog.at_level(logging.INFO):
        answer = await handler(leaving(), ClientDisconnect())
    assert answer.status_code == 499
    assert not caplog.records
