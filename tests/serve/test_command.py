"""`specdec serve` as a user runs it: a process of its own, ready, used, and stopped."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.served_command import (
    READY_TIMEOUT_S,
    SPECDEC,
    STOP_TIMEOUT_S,
    ServedCommand,
    served,
)

PROMPT = "the cat sat on the mat and the cat sat"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(READY_TIMEOUT_S + 2 * STOP_TIMEOUT_S)]


@pytest.fixture(scope="module")
def server(tiny_llama, tiny_draft, tmp_path_factory) -> Iterator[ServedCommand]:
    models = ("--target", tiny_llama, "--draft", tiny_draft)
    numbers = ("--dtype", "float64", "--device", "cpu", "--threads", 1)
    with served(tmp_path_factory.mktemp("serve") / "log", *models, *numbers) as running:
        yield running


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
        answer = generate(
            "--address", server.grpc_address, *sampling, "--speculation", *speculation
        )
        assert answer["token_ids"] == alone["token_ids"]
        assert answer["text"] == alone["text"]
    assert answer["speculation"]["drafter"] == "draft"
    assert answer["speculation"]["num_draft_tokens"] > 0


def test_stops_on_sigterm_with_status_0_and_leaves_the_ports(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(STOP_TIMEOUT_S) == 0, server.log_tail()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", server.grpc_port))
