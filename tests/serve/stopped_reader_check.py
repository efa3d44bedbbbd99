"""Readers that stop, through Serve's HAProxy ingress, on a Ray cluster of its own.

Run by hand, since it takes minutes. Prints one JSON object.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import httpx
import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from deployments.app import build
from deployments.settings import AppSettings
from tests.serve.harness import (
    READY_TIMEOUT_S,
    describe_target,
    free_port,
    settings,
    start_ray,
    wait_until,
)
from tests.serve.python_proxy_check import SERVICER

READER_TIMEOUT_S = 8.0
# Much more than all buffers between engine and reader hold.
NUM_TOKENS = 220
NUM_CHOICES = 64
BODY = {
    "prompt": "the cat",
    "max_tokens": NUM_TOKENS,
    "n": NUM_CHOICES,
    "temperature": 0.9,
    "seed": 3,
    "logprobs": 12,
    "ignore_eos": True,
    "stream": True,
}


def main(target: Path) -> None:
    port = free_port()
    start_ray(num_cpus=8)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        grpc_options=gRPCOptions(port=free_port(), grpc_servicer_functions=[SERVICER]),
    )
    serve.run(build(app_settings(target)), name="main", route_prefix="/")
    try:
        wait_until(
            lambda: httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200,
            READY_TIMEOUT_S,
            "HAProxy knows the replicas",
        )
        print(json.dumps({**pausing(port), **leaving(port)}))
    finally:
        serve.shutdown()
        ray.shutdown()


def app_settings(target: Path) -> AppSettings:
    base = settings(target, None)
    scheduler = base.target.scheduler.model_copy(update={"max_num_sequences": 8, "max_queue": 256})
    cache = base.target.cache.model_copy(update={"num_blocks": 4096})
    gateway = base.gateway.model_copy(update={"reader_timeout_s": READER_TIMEOUT_S})
    engine = base.target.model_copy(update={"scheduler": scheduler, "cache": cache})
    return base.model_copy(update={"target": engine, "gateway": gateway})


def ask(port: int) -> socket.socket:
    """Ask for a stream, with a receive buffer of a few KB, and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    body = json.dumps(BODY).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def num_generated() -> int:
    return describe_target("main").stats.counters.num_generation_tokens


def until_still(timeout_s: float = 90.0) -> int:
    """Wait until nothing was generated for 2 s; returns how much there is."""
    deadline_s, before = time.monotonic() + timeout_s, -1
    while (now := num_generated()) != before or not now:
        if time.monotonic() > deadline_s:
            raise TimeoutError("generation went on")
        before = now
        time.sleep(2.0)
    return now


def texts_of(raw: bytes) -> list[str]:
    texts = [""] * NUM_CHOICES
    for line in raw.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                texts[choice["index"]] += choice["text"]
    return texts


def unchunked(raw: bytes) -> bytes:
    """The body of a response in chunked transfer coding."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def pausing(port: int) -> dict[str, object]:
    before = num_generated()
    connection = ask(port)
    stopped_at = until_still(READER_TIMEOUT_S + 60) - before
    raw = bytearray()
    while part := connection.recv(1 << 20):
        raw += part
    url = f"http://127.0.0.1:{port}/v1/completions"
    plain = httpx.post(url, json=BODY, timeout=300)
    return {
        "wanted": NUM_TOKENS * NUM_CHOICES,
        "stopped_at": stopped_at,
        "same": texts_of(unchunked(bytes(raw))) == texts_of(plain.content),
    }


def leaving(port: int) -> dict[str, object]:
    with ask(port):
        wait_until(lambda: describe_target("main").stats.num_running, READY_TIMEOUT_S, "it runs")
        wait_until(
            lambda: describe_target("main").stats.kv_usage == 0.0,
            READER_TIMEOUT_S + 90,
            "a request that nobody reads has ended",
        )
        counters = describe_target("main").stats.counters
    return {"aborted": counters.finished["abort"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
