"""`specdec serve` as a user runs it: a process of its own, ready, used, and stopped."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.served_command import (
    READY_TIMEOUT_S,
    SPECDEC,
    STOP_TIMEOUT_S,
    ServedCommand,
    own_environment,
    served,
)

PROMPT = "the cat sat on the mat and the cat sat"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(READY_TIMEOUT_S + 2 * STOP_TIMEOUT_S)]


# As for somebody who has never heard of Ray's tokens.
NO_TOKEN = {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": None}
ASK_GCS = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"", timeout=10))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(tiny_llama, tiny_draft, home, tmp_path_factory) -> Iterator[ServedCommand]:
    models = ("--target", tiny_llama, "--draft", tiny_draft)
    numbers = ("--dtype", "float64", "--device", "cpu", "--threads", 1)
    log = tmp_path_factory.mktemp("serve") / "log"
    with served(log, *models, *numbers, HOME=str(home), **NO_TOKEN) as running:
        yield running


def processes(server: ServedCommand) -> list[psutil.Process]:
    own = psutil.Process(server.process.pid)
    return [own, *own.children(recursive=True)]


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Address and port of what it listens at."""
    return [
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def ask_gcs(server: ServedCommand, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """What anybody who reaches Ray's port can try."""
    (gcs,) = [process for process in processes(server) if process.name() == "gcs_server"]
    ((host, port),) = listening(gcs)
    return subprocess.run(
        [sys.executable, "-c", ASK_GCS, f"{host}:{port}"],
        env=own_environment(**environment),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_nothing_listens_but_on_loopback(server):
    where = {(process.name(), *at) for process in processes(server) for at in listening(process)}
    assert {port for _, _, port in where} >= {server.http_port, server.grpc_port}
    assert [at for at in where if at[1] not in ("127.0.0.1", "::1")] == []


def test_ray_asks_everybody_for_its_token(server, home):
    token = home / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    known = ask_gcs(server, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token.read_text())
    assert known.returncode == 0, known.stderr
    for stranger in (
        {**NO_TOKEN, "RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64},
    ):
        refused = ask_gcs(server, **stranger)
        assert refused.returncode != 0
        assert "uthenticat" in refused.stderr, refused.stderr


def test_models_run_at_the_servers_own_niceness(server):
    own, *others = processes(server)
    replicas = [p for p in others if "ServeReplica" in " ".join(p.cmdline())]
    assert len(replicas) == 3
    assert {process.nice() for process in replicas} == {own.nice()}


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
