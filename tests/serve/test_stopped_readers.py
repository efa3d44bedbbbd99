"""Readers that stop in mid-stream, through HAProxy: held, let go on, given up."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest
from ray import serve

from tests.serve.harness import (
    CALL_TIMEOUT_S,
    READY_TIMEOUT_S,
    holds_nothing,
    settings,
    wait_until,
)

NAME = "readers"
READER_TIMEOUT_S = 40.0
STILL_S = 3.0
MAX_MODEL_LEN = 512
# Several times what the buffers on the way and the queue of outputs hold, with long events.
NUM_CHOICES = 8
NUM_TOKENS = 500
BODY = {
    "prompt": "the cat",
    "request_id": "r" * 100,
    "n": NUM_CHOICES,
    "max_tokens": NUM_TOKENS,
    "temperature": 0.9,
    "seed": 3,
    "logprobs": 20,
    "ignore_eos": True,
    "speculation": {"mode": "off"},
    "stream": True,
}
MOST = 0.75 * NUM_CHOICES * NUM_TOKENS


@pytest.fixture(scope="module")
def service(deploy, tiny_llama):
    base = settings(tiny_llama, None)
    scheduler = base.target.scheduler.model_copy(update={"max_model_len": MAX_MODEL_LEN})
    cache = base.target.cache.model_copy(update={"num_blocks": 2048})
    gateway = base.gateway.model_copy(update={"reader_timeout_s": READER_TIMEOUT_S})
    engine = base.target.model_copy(update={"scheduler": scheduler, "cache": cache})
    yield deploy(NAME, base.model_copy(update={"target": engine, "gateway": gateway}))
    serve.delete(NAME)


def ask(port: int) -> socket.socket:
    """Ask for a stream, and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(CALL_TIMEOUT_S)
    connection.connect(("127.0.0.1", port))
    body = json.dumps(BODY).encode()
    head = (
        f"POST /{NAME}/v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def num_generated(service) -> int:
    return service.describe().stats.counters.num_generation_tokens


def wait_until_still(service, before: int) -> int:
    """Returns how many tokens were generated since `before` once none has been for a while."""
    counts = [(time.monotonic(), before)]

    def is_still() -> bool:
        now = num_generated(service)
        if now != counts[-1][1]:
            counts.append((time.monotonic(), now))
        return now > before and time.monotonic() - counts[-1][0] > STILL_S

    wait_until(is_still, 2 * CALL_TIMEOUT_S, "nothing is generated any more")
    return counts[-1][1] - before


def texts_of(events: bytes) -> list[str]:
    """The texts of a whole stream, by choice."""
    lines = [line for line in events.splitlines() if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
    texts = [""] * NUM_CHOICES
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


def unchunked(response: bytes) -> bytes:
    """The body of a response in chunked transfer coding."""
    _, _, rest = response.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def test_a_stopped_reader_is_held_and_gets_the_same_text(service, cluster):
    """Meanwhile another reader's stream runs to its end."""
    before = num_generated(service)
    connection = ask(cluster.http)
    num_ahead = wait_until_still(service, before)
    print(f"{num_ahead} tokens ahead")
    assert num_ahead < MOST
    url = f"{service.url}/v1/completions"
    other = httpx.post(url, json=BODY, timeout=READER_TIMEOUT_S - 2 * STILL_S)
    response = bytearray()
    while part := connection.recv(2**20):
        response += part
    connection.close()
    assert texts_of(unchunked(bytes(response))) == texts_of(other.content)


def test_a_reader_that_stays_away_is_given_up(service, cluster):
    before = service.describe().stats.counters
    with ask(cluster.http):
        wait_until(lambda: service.describe().stats.num_running, READY_TIMEOUT_S, "it runs")
        wait_until(
            lambda: holds_nothing(NAME), READER_TIMEOUT_S + CALL_TIMEOUT_S, "its memory is free"
        )
        after = service.describe().stats.counters
    assert after.finished["abort"] == before.finished.get("abort", 0) + NUM_CHOICES
    assert after.num_generation_tokens - before.num_generation_tokens < MOST
