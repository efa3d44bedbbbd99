"""`specdec serve` as a user runs it: a process of its own, ready, used, and stopped."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

READY_TIMEOUT_S = 400  # half a minute on an idle machine
STOP_TIMEOUT_S = 60
SPECDEC = (sys.executable, "-m", "specdec.cli")
LOG = re.MULTILINE | re.DOTALL
PROMPT = "the cat sat on the mat and the cat sat"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(READY_TIMEOUT_S + 2 * STOP_TIMEOUT_S)]


@dataclass
class Server:
    """A running `specdec serve`."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def wait_until_ready(self) -> None:
        """Ready is what it says of itself, and a first answer that proves it."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not re.search(
            r"^ready$.*^  first answer  Once upon a time.", self.log.read_text(), LOG
        ):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self.log.read_text()[-3000:]
            time.sleep(0.5)


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def server(tiny_llama, tiny_draft, tmp_path_factory) -> Iterator[Server]:
    http_port, grpc_port = free_ports(2)
    log = tmp_path_factory.mktemp("serve") / "log"
    options = {
        "--target": tiny_llama,
        "--draft": tiny_draft,
        "--dtype": "float64",
        "--device": "cpu",
        "--threads": 1,
        "--http-port": http_port,
        "--grpc-port": grpc_port,
    }
    arguments = [str(part) for pair in options.items() for part in pair]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*SPECDEC, "serve", *arguments], stdout=output, stderr=subprocess.STDOUT
        )
        running = Server(process, f"127.0.0.1:{grpc_port}", log)
        try:
            running.wait_until_ready()
            yield running
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            finally:
                process.kill()


def generate(*arguments: object) -> dict[str, object]:
    command = [*SPECDEC, "generate", PROMPT, "--json", "--max-tokens", "24", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("sampling", [[], ["--temperature", 0.8, "--seed", 7]])
def test_server_and_process_agree_whatever_the_speculation(server, tiny_llama, sampling):
    alone = generate(
        "--target", tiny_llama, "--dtype", "float64", "--speculation", "off", *sampling
    )
    for speculation in (["off"], ["auto"], ["fixed", "--k", 4, "--drafter", "draft"]):
        served = generate("--address", server.address, *sampling, "--speculation", *speculation)
        assert served["token_ids"] == alone["token_ids"]
        assert served["text"] == alone["text"]
    assert served["speculation"]["drafter"] == "draft"
    assert served["speculation"]["num_draft_tokens"] > 0


def test_stops_on_sigterm_with_status_0_and_leaves_the_ports(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(STOP_TIMEOUT_S) == 0, server.log.read_text()[-3000:]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = server.address.split(":")
        probe.bind((host, int(port)))
