"""What HAProxy in front of the gateway does for those who come, stay long, and leave."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import time
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from specdec import AsyncClient
from tests.serve.conftest import FOLDER
from tests.serve.harness import (
    CALL_TIMEOUT_S,
    READY_TIMEOUT_S,
    holds_nothing,
    wait_until,
)

NUM_LEAVES = 30
# Far more than can be generated before a leave is heard of.
OFF = {"mode": "off"}
LONG = {"max_tokens": 230, "ignore_eos": True, "temperature": 0, "speculation": OFF}
PROMPT = "the dog ran after the cat"


def messages_before_leaving():
    numbers = random.Random(7)
    return [numbers.randrange(4) for _ in range(NUM_LEAVES)]


def ended(service):
    """How the requests so far have ended, once nothing is left of any."""
    wait_until(lambda: holds_nothing(service.name), CALL_TIMEOUT_S, "an idle application")
    return dict(service.describe().stats.counters.finished)


def num_cancelled(before, after):
    """Those of them that the engine had begun; none may have run to its end. Who left before that
    was never admitted."""
    assert after.get("length", 0) == before.get("length", 0)
    assert after.get("stop", 0) == before.get("stop", 0)
    return after.get("abort", 0) - before.get("abort", 0)


def test_all_sync_grpc_clients_who_leave_are_cancelled(service, grpc_client):
    before = ended(service)
    for number in messages_before_leaving():
        stream = grpc_client.generate(PROMPT, **LONG)
        for _ in range(number):
            next(stream)
        stream.close()
    num_read = sum(number > 0 for number in messages_before_leaving())
    assert num_cancelled(before, ended(service)) >= num_read


async def test_all_async_grpc_clients_who_leave_are_cancelled(service):
    before = await asyncio.to_thread(ended, service)
    pauses = random.Random(8)
    async with AsyncClient(service.address, api_key="key-a", application=service.name) as client:
        for number in messages_before_leaving():
            stream = client.generate(PROMPT, **LONG)
            waiting = asyncio.create_task(_read(stream, number))
            if number == 0:
                await asyncio.sleep(pauses.uniform(0, 0.05))
                waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await stream.aclose()
    num_read = sum(number > 0 for number in messages_before_leaving())
    assert num_cancelled(before, await asyncio.to_thread(ended, service)) >= num_read


async def _read(stream, number):
    """So many messages of it; without one, until it is cancelled."""
    for _ in range(number or 1):
        await anext(stream)


async def test_grpc_clients_who_leave_before_their_answer_are_cancelled(service):
    before = await asyncio.to_thread(ended, service)
    async with AsyncClient(service.address, api_key="key-a", application=service.name) as client:
        await client.wait_until_connected()
        for number in range(10):
            waiting = asyncio.create_task(client.complete(PROMPT, **LONG))
            await asyncio.sleep(0.01 * number)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert num_cancelled(before, await asyncio.to_thread(ended, service)) >= 5


def test_a_client_whose_process_dies_is_cancelled(service, grpc_client):
    before = ended(service)
    stream = grpc_client.generate(PROMPT, **LONG)
    next(stream)
    grpc_client.close()  # the connection, with the stream in it
    assert num_cancelled(before, ended(service)) == 1


@pytest.mark.parametrize("pause_s", [None, 0.005])
def test_http_clients_who_leave_before_their_answer_are_cancelled(cluster, service, pause_s):
    """Whether head and body come together, or one after the other as httpx sends them."""
    before = ended(service)
    body = json.dumps({"prompt": PROMPT, **LONG}).encode()
    path = f"{urlsplit(service.url).path}/v1/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-a\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    for number in range(10):
        with socket.create_connection(("127.0.0.1", cluster.http), CALL_TIMEOUT_S) as connection:
            if pause_s is None:
                connection.sendall(head + body)
            else:
                connection.sendall(head)
                time.sleep(pause_s)
                connection.sendall(body)
            time.sleep(0.01 * number)
    assert num_cancelled(before, ended(service)) >= 5


def test_http_streams_are_not_held_back(service):
    """The first event is here while the request still runs."""
    body = {"prompt": PROMPT, **LONG, "stream": True}
    with httpx.stream(
        "POST",
        f"{service.url}/v1/completions",
        json=body,
        headers={"authorization": "Bearer key-a"},
        timeout=CALL_TIMEOUT_S,
    ) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line)
        assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] is not None
        assert service.describe().stats.num_running == 1
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_one_connection_serves_many_requests(cluster, service):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http, timeout=CALL_TIMEOUT_S)
    ends = set()
    for _ in range(3):
        connection.request("GET", "/version")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        assert connection.sock is not None, "closed after a request"
        ends.add(connection.sock.getsockname())
    connection.close()
    assert len(ends) == 1


def test_what_it_bounds_and_what_it_does_not(cluster):
    (path,) = FOLDER.glob("*/haproxy.cfg")
    config = path.read_text()
    assert "timeout http-request 30s" in config
    assert "timeout server" not in config, "a long silent generation is cut"
    assert "hard-stop-after 660s" in config, "a change of replicas cuts the streams of before"


def haproxies():
    return [p for p in psutil.Process().children(recursive=True) if p.name() == "haproxy"]


@pytest.mark.slow
def test_a_killed_haproxy_comes_back(service):
    victims = haproxies()
    for victim in victims:
        victim.kill()
    wait_until(
        lambda: httpx.get(f"{service.url}/version", timeout=5).status_code == 200,
        READY_TIMEOUT_S,
        "another one serves",
    )
    assert not {p.pid for p in haproxies()} & {p.pid for p in victims}
