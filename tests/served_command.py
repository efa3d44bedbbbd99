"""`specdec serve` as a user runs it: a process of its own, for the tests that talk to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployments.ray_environment import free_ports

READY_TIMEOUT_S = 400  # half a minute on an idle machine
STOP_TIMEOUT_S = 60
SPECDEC = (sys.executable, "-m", "specdec.cli")
READY = re.compile(r"^ready$.*^  first answer  Once upon a time.", re.MULTILINE | re.DOTALL)


# What a test process that runs a Ray of its own has set for that one alone.
OF_ANOTHER_RAY = ("RAY_SERVE_", "RAY_ENABLE_", "RAY_worker_niceness", "SPECDEC_SERVE_")


def own_environment(**changes: str | None) -> dict[str, str]:
    """For a process that starts a Ray of its own; None takes a variable away."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OF_ANOTHER_RAY)}
    return {k: v for k, v in (kept | changes).items() if v is not None}


@dataclass(frozen=True)
class ServedCommand:
    """A running `specdec serve` and the file that it writes to."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def wait_until_ready(self) -> None:
        """Ready is what it says of itself, and a first answer that proves it."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not READY.search(self.log.read_text(errors="replace")):
            assert self.process.poll() is None, self.log_tail()
            assert time.monotonic() < deadline_s, self.log_tail()
            time.sleep(0.5)


@contextmanager
def served(log: Path, *options: object, **environment: str | None) -> Iterator[ServedCommand]:
    """`specdec serve` with these options on free ports, ready; it ends with the block."""
    http_port, grpc_port = free_ports(2)
    ports = ("--http-port", http_port, "--grpc-port", grpc_port)
    command = [*SPECDEC, "serve", *map(str, options), *map(str, ports)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=own_environment(**environment)
        )
        running = ServedCommand(process, http_port, grpc_port, log)
        try:
            running.wait_until_ready()
            yield running
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            finally:
                process.kill()
