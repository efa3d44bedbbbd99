"""`specdec top` against an HTTP server that tells readings; in a terminal; while nobody answers."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from specdec.cli.top_source import fetch
from specdec.errors import UnavailableError
from tests.unit.cli.readings import two_readings

# Imports of a process on a busy machine.
TERMINAL_TIMEOUT_S = 60.0


class Gateway(ThreadingHTTPServer):
    """Tells that time passes and 17 tokens come between a reading and the next."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0, model: str = "demo", num_asked: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self.num_asked = num_asked
        self.answer: tuple[int, bytes] | None = None
        self.drips = False
        self.location: str | None = None
        self.authorizations: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reading(self) -> bytes:
        reading = two_readings()[1]
        reading["model"] = self.model
        reading["time_s"] += self.num_asked
        reading["totals"]["generation_tokens"] += 17 * self.num_asked
        self.num_asked += 1
        return json.dumps(reading).encode()


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        status, body = (404, b"") if self.path != "/live" else (200, self.server.reading())
        if self.server.answer is not None:
            status, body = self.server.answer
        self.server.authorizations.append(self.headers.get("authorization"))
        self.send_response(status if self.server.location is None else 302)
        if self.server.location is not None:
            self.send_header("location", self.server.location)
        self.end_headers()
        with suppress(OSError):  # whoever asked has gone
            for _ in range(200 if self.server.drips else 0):
                self.wfile.write(b" ")
                time.sleep(0.05)
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def gateway(*given: Any) -> Iterator[Gateway]:
    server = Gateway(*given)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[Gateway]:
    with gateway() as running:
        yield running


def test_one_frame_is_printed_where_nobody_watches(specdec, server):
    for arguments in ((), ("--once",)):
        lines = specdec("top", "--url", server.url, "--interval", "0.5", *arguments).stdout
        assert "specdec top  demo" in lines
        assert "17.0 out" in lines
        assert "draft#1" in lines


def test_json_has_the_reading_and_its_rates(specdec, server):
    told = specdec.json("top", "--url", f"{server.url}/", "--interval", "0.5")
    assert told["reading"]["model"] == "demo"
    assert told["rates"]["seconds"] == 1.0
    assert told["rates"]["generation_tokens_per_s"] == 17.0
    assert told["rates"]["latency"]["time_to_first_token"]["count"] == 0


def test_a_gateway_that_gives_a_reading_again_is_asked_again(specdec, server):
    same = server.reading()
    server.answer = (200, same)
    timer = threading.Timer(0.7, lambda: setattr(server, "answer", None))
    timer.start()
    told = specdec.json("top", "--url", server.url, "--interval", "0.5")
    timer.join()
    assert told["rates"]["generation_tokens_per_s"] == 17.0


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ((404, b"no"), 2, "is no specdec gateway: it answers 404"),
        ((200, b"<html>"), 2, "is no specdec gateway: it does not answer with JSON"),
        ((200, b"\xff\xfe\xff"), 2, "is no specdec gateway: it does not answer with JSON"),
        ((200, b"[1]"), 2, "is no specdec gateway: its answer is no reading"),
        ((200, b'{"time_s": 1}'), 2, "is no specdec gateway: its answer is no reading"),
        ((503, b"{}"), 3, "answers 503"),
    ],
)
def test_who_else_answers_is_told(specdec, server, answer, code, message):
    server.answer = answer
    result = specdec("top", "--url", server.url, "--once", code=code)
    assert message in result.stderr
    assert result.stdout == ""


def test_a_total_that_is_missing_is_named(specdec, server):
    reading = json.loads(server.reading())
    del reading["totals"]["steps_by_k"]
    server.answer = (200, json.dumps(reading).encode())
    assert "lacks steps_by_k" in specdec("top", "--url", server.url, "--once", code=2).stderr


@pytest.mark.parametrize(
    ("part", "other"), [("time_s", "now"), ("classes", []), ("targets", {}), ("latency", None)]
)
def test_a_part_of_another_kind_is_no_reading(specdec, server, part, other):
    server.answer = (200, json.dumps(json.loads(server.reading()) | {part: other}).encode())
    assert "no reading" in specdec("top", "--url", server.url, "--once", code=2).stderr


def test_an_answer_that_never_ends_is_given_up(server):
    """Every part of it comes in time, so that no limit of the socket is reached."""
    server.drips = True
    with pytest.raises(UnavailableError, match="takes too long"):
        fetch(server.url, timeout_s=0.5)


@pytest.mark.parametrize("status", [401, 403])
def test_a_gateway_that_wants_a_key_is_told_apart_from_none(specdec, server, status):
    server.answer = (status, b"{}")
    result = specdec("top", "--url", server.url, "--once", code=2)
    assert f"answers {status}: give the key of an operator, by --api-key" in result.stderr


def test_a_key_goes_with_the_question(specdec, server, monkeypatch):
    specdec("top", "--url", server.url, "--once", "--api-key", "secret")
    assert server.authorizations[-1] == "Bearer secret"
    monkeypatch.setenv("SPECDEC_API_KEY", "of-the-environment")
    specdec("top", "--url", server.url, "--once")
    assert server.authorizations[-1] == "Bearer of-the-environment"
    assert "api_key" in specdec("top", "--url", server.url, "--api-key", "a\nb", code=2).stderr


def test_a_key_does_not_follow_a_redirect(specdec, server):
    with gateway() as other:
        server.location = f"{other.url}/live"
        specdec("top", "--url", server.url, "--once", "--api-key", "secret")
        assert server.authorizations[-1] == "Bearer secret"
        assert set(other.authorizations) == {None}


def test_nobody_there(specdec):
    with gateway() as gone:
        url = gone.url
    result = specdec("top", "--url", url, code=3)
    assert f"no answer from {url}/live" in result.stderr


class Terminal:
    """`specdec top` in a terminal of 80 columns and 24 rows; what it wrote is kept."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specdec.cli", "top", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            # Tests that run in the background of a shell have inherited a deaf ear for ctrl-c.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, wanted: str) -> None:
        """Until it is written, after all that was waited for before."""
        deadline_s = time.monotonic() + TERMINAL_TIMEOUT_S
        while wanted not in self.text:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{wanted!r} did not come in {self.text[-3000:]!r}"
            if select.select([self._master], [], [], min(left_s, 0.5))[0]:
                self.text += os.read(self._master, 65536).decode(errors="replace")
        self.text = self.text[self.text.index(wanted) + len(wanted) :]

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def end(self) -> int:
        """The exit status; what is still written on the way out is read, or nothing would end."""
        deadline_s = time.monotonic() + TERMINAL_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            if select.select([self._master], [], [], 0.1)[0]:
                with suppress(OSError):  # its end of the terminal is closed
                    os.read(self._master, 65536)
        return self.process.wait(1.0)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    shown = Terminal("--url", url, "--interval", "0.5")
    try:
        yield shown
    finally:
        shown.close()


@pytest.mark.parametrize("end", ["q", "Q", "ctrl-c"])
def test_it_is_shown_until_someone_quits(server, end):
    with terminal(server.url) as shown:
        shown.wait_for("specdec top")
        shown.wait_for("17.0")
        if end == "ctrl-c":
            shown.process.send_signal(signal.SIGINT)
        else:
            shown.press(f"x{end}")
        assert shown.end() == 0


def test_a_gateway_that_restarts_is_waited_for():
    with ExitStack() as stack:
        with gateway() as first:
            port = first.server_address[1]
            shown = stack.enter_context(terminal(first.url))
            shown.wait_for("17.0")
        shown.wait_for("no answer since")
        stack.enter_context(gateway(port, "successor", 1000))
        shown.wait_for("successor")
        shown.press("q")
        assert shown.end() == 0
