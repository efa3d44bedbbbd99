"""Clients of every sort, good and bad, and what became of each (see `soak.py`)."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec import Client
from specdec.errors import SpecdecError

HOST = "127.0.0.1"
TIMEOUT_S = 180.0
# Longer than the service bears a reader that reads nothing.
STALL_S = 90.0
SMALL_BUFFER = 4096
GARBAGE = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": [' + b"{}," * 100_000 + b"{}]}",
    b'{"prompt": "a", "logit_bias": {"x": 1}}',
    b'{"prompt": "a", "stop": [""]}',
    b'{"messages": "hi"}',
    b'{"prompt": "' + b"a" * 1_000_000 + b'"}',
)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, its sampling parameters, and its text without speculation."""

    prompt: list[int]
    params: dict[str, Any]
    expected: str = ""

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"prompt": self.prompt, "stream": True, **self.params, **fields}


@dataclass(frozen=True, slots=True)
class Address:
    http_port: int
    grpc_port: int
    keys: tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """What became of the clients; counted from many threads."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def complain(self, what: str) -> None:
        with self.lock:
            self.counts["complaints"] += 1
            if len(self.complaints) < 20:
                self.complaints.append(what)


class Crowd:
    """`number` clients that each do one thing after another, at random, until they are ended."""

    def __init__(
        self, address: Address, requests: Sequence[Request], number: int, seed: int
    ) -> None:
        self.tally = Tally()
        self._address = address
        self._requests = requests
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + n),), daemon=True)
            for n in range(number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let everyone finish what they do. Raises SystemExit where one does not."""
        self._ended.set()
        deadline_s = time.monotonic() + TIMEOUT_S + STALL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise SystemExit("a client never ended")

    def _work(self, rng: random.Random) -> None:
        doings: list[Callable[[random.Random], None]] = [
            self._whole_http, self._whole_grpc, self._leave_http, self._leave_grpc, self._garbage,
            self._half_a_body, self._stop_reading,
        ]  # fmt: skip
        weights = [30, 30, 14, 14, 6, 4, 2]
        while not self._ended.is_set():
            (doing,) = rng.choices(doings, weights)
            try:
                doing(rng)
            except Exception as error:  # whatever it is, it is told, and the crowd goes on
                self.tally.complain(f"{doing.__name__}: {type(error).__name__}: {error}"[:300])
                self._ended.wait(1.0)

    def _whole_http(self, rng: random.Random) -> None:
        request = rng.choice(self._requests)
        text = "".join(self._events(rng, request.body(), TIMEOUT_S))
        self._compare("http", text, request.expected)

    def _whole_grpc(self, rng: random.Random) -> None:
        request = rng.choice(self._requests)
        with Client(f"{HOST}:{self._address.grpc_port}", api_key=self._key(rng)) as client:
            chunks = client.generate(request.prompt, timeout_s=TIMEOUT_S, **request.params)
            text = "".join(chunk.text for chunk in chunks)
        self._compare("grpc", text, request.expected)

    def _compare(self, way: str, text: str, expected: str) -> None:
        self.tally.count(f"whole, {way}")
        if text != expected:
            self.tally.count("differing texts")
            self.tally.complain(f"differs ({way}): {text!r}, expected {expected!r}")

    def _leave_http(self, rng: random.Random) -> None:
        request, texts = rng.choice(self._requests), []
        events = self._events(rng, request.body(), TIMEOUT_S)
        for _ in range(rng.randrange(4)):
            texts.append(next(events, ""))
        events.close()
        self._compare_beginning("http", "".join(texts), request.expected)

    def _leave_grpc(self, rng: random.Random) -> None:
        request, texts = rng.choice(self._requests), []
        with Client(f"{HOST}:{self._address.grpc_port}", api_key=self._key(rng)) as client:
            chunks = client.generate(request.prompt, timeout_s=TIMEOUT_S, **request.params)
            for _, chunk in zip(range(rng.randrange(4)), chunks, strict=False):
                texts.append(chunk.text)
        self._compare_beginning("grpc", "".join(texts), request.expected)

    def _compare_beginning(self, way: str, text: str, expected: str) -> None:
        self.tally.count(f"left, {way}")
        if not expected.startswith(text):
            self.tally.count("differing texts")
            self.tally.complain(f"differs ({way}, left): {text!r}, expected {expected!r}")

    def _garbage(self, rng: random.Random) -> None:
        """Bodies that are none; the answer must be a refusal."""
        path = rng.choice(("/v1/completions", "/v1/chat/completions", "/tokenize"))
        connection = http.client.HTTPConnection(HOST, self._address.http_port, timeout=TIMEOUT_S)
        key = rng.choice((self._key(rng), "wrong", ""))
        try:
            connection.request(
                "POST", path, rng.choice(GARBAGE), {"Authorization": f"Bearer {key}"}
            )
            status = connection.getresponse().status
        finally:
            connection.close()
        self.tally.count("garbage")
        if not 400 <= status < 500:
            self.tally.complain(f"garbage was answered with {status}")

    def _half_a_body(self, rng: random.Random) -> None:
        with socket.create_connection((HOST, self._address.http_port), TIMEOUT_S) as connection:
            connection.sendall(self._head(self._key(rng), "/v1/completions", 1000) + b'{"prompt"')
            time.sleep(rng.choice((0, 0.1, 2)))
        self.tally.count("half a body")

    def _stop_reading(self, rng: random.Random) -> None:
        """Ask for more than all buffers on the way hold, read a little, and then nothing."""
        request = rng.choice(self._requests)
        body = json.dumps(
            request.body(max_tokens=900, logprobs=20, ignore_eos=True, min_tokens=900)
        ).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            connection.settimeout(TIMEOUT_S)
            connection.connect((HOST, self._address.http_port))
            connection.sendall(self._head(self._key(rng), "/v1/completions", len(body)) + body)
            connection.recv(1000)
            self._ended.wait(STALL_S)
        self.tally.count("stopped reading")

    def _key(self, rng: random.Random) -> str:
        return rng.choice(self._address.keys)

    def _head(self, key: str, path: str, length: int) -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def _events(self, rng: random.Random, body: dict[str, Any], timeout_s: float) -> Iterator[str]:
        """The texts of a streamed completion. Raises OSError or ValueError where it fails."""
        return stream_texts(self._address.http_port, self._key(rng), body, timeout_s)


def stream_texts(port: int, key: str, body: dict[str, Any], timeout_s: float) -> Iterator[str]:
    """The text of every event of one streamed completion. Closing it leaves the stream."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(300)!r}")
        for line in response:
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: "):
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise ValueError(f"error in the stream: {event['error']}")
                yield "".join(choice["text"] for choice in event["choices"])
        raise ValueError("the stream ended before its end")
    finally:
        connection.close()


def without_speculation(address: Address, request: Request) -> Request:
    """The request with its text, as plain decoding gives it."""
    try:
        body = request.body(speculation={"mode": "off"})
        texts = stream_texts(address.http_port, address.keys[0], body, TIMEOUT_S)
        return Request(request.prompt, request.params, "".join(texts))
    except (OSError, ValueError, SpecdecError) as error:
        raise SystemExit(f"no reference text: {error}") from error
