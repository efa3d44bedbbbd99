"""The demo as a user starts it, in processes of its own, for benchmarks that go over HTTP.

Starts `specdec serve` on the demo's config with a few changes, waits for a real answer, tells what
the processes weigh, and ends them. The client is bare asyncio, since it shares the cores with what
it measures.
"""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.measure import Run, resident_bytes
from deployments.ray_environment import free_ports
from specdec.cli.serve import read_config

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 120.0
HOST = "127.0.0.1"
DEPLOYMENTS = ("Gateway", "Target", "Draft")


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo. `start_s`: from the command to the first answer."""

    port: int
    process: psutil.Process
    start_s: float

    def processes(self) -> list[psutil.Process]:
        """The command and everything that it started."""
        return [self.process, *self.process.children(recursive=True)]

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Processes of one deployment, by Ray's process title."""
        return [p for p in self.processes() if title(p) == f"replica {deployment}"]

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far by process title."""
        found: dict[str, float] = {}
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                name = title(process)
                found[name] = found.get(name, 0.0) + times.user + times.system
        return found

    def resident_bytes(self) -> dict[str, int]:
        """Memory by process title, pages that several share counted once."""
        found: dict[str, int] = {}
        for process in self.processes():
            name = title(process)
            found[name] = found.get(name, 0) + resident_bytes(process.pid)
        return found


def title(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "ended"
    if not words:
        return "ended"
    if "ServeReplica" in words[0]:  # Ray writes the method that runs behind it
        return "replica " + next(n for n in (*DEPLOYMENTS, "?") if n in words[0] or n == "?")
    return words[0] if words[0].startswith("ray::") else " ".join(Path(w).name for w in words[:3])


def demo_config(target: dict[str, Any], with_draft: bool = True) -> dict[str, Any]:
    """The demo's Serve config on free ports; `target` changes keys of its target model."""
    config = copy.deepcopy(read_config(None))
    config["http_options"]["port"], config["grpc_options"]["port"] = free_ports(2)
    application = config["applications"][0]
    application["args"]["target"]["target"].update(target)
    if not with_draft:
        del application["args"]["draft"]
        application["args"].pop("draft_resources", None)
        application["args"]["target"]["speculation"]["drafters"] = ["ngram"]
        application["deployments"] = [
            each for each in application["deployments"] if each["name"] != "Draft"
        ]
    return config


@contextmanager
def serving(
    config: dict[str, Any], log: Path | None = None, key: str | None = None
) -> Iterator[Demo]:
    """Run the config until the block ends; `key`: of a caller, where it asks for one. Raises
    RuntimeError where it does not come up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        log = log or Path(folder) / "log"
        with log.open("w") as output:
            command = [sys.executable, "-m", "specdec.cli", "serve", "--config", str(path)]
            started_s = time.monotonic()
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                port = config["http_options"]["port"]
                _wait_for_answer(process, port, log, key)
                yield Demo(port, psutil.Process(process.pid), time.monotonic() - started_s)
            finally:
                _stop(process)


def _wait_for_answer(
    process: subprocess.Popen[bytes], port: int, log: Path, key: str | None
) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(
                f"specdec serve ended with status {process.returncode}: {log.read_text()[-2000:]}"
            )
        try:
            if asyncio.run(stream(port, body([1, 2, 3], 1), key)).num_tokens:
                return
        except (OSError, ValueError, asyncio.IncompleteReadError):
            time.sleep(0.25)
    raise RuntimeError(f"no answer within {READY_TIMEOUT_S:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def body(prompt: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A streaming greedy completion of token ids that reports usage."""
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


async def stream(port: int, request: dict[str, Any], key: str | None = None) -> Run:
    """One streamed completion. Raises ValueError where the answer is no stream."""
    payload = json.dumps(request).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    started_s = time.perf_counter()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer %s\r\n"
        b"Content-Length: %d\r\n\r\n" % ((key or "none").encode(), len(payload)) + payload
    )
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            first_s, num_tokens = await _read_events(reader, started_s)
    finally:
        writer.close()
    return Run(num_tokens, time.perf_counter() - started_s, first_s)


async def _read_events(reader: asyncio.StreamReader, started_s: float) -> tuple[float, int]:
    """Seconds to the first event and the tokens that the last one with usage reports."""
    status = await reader.readline()
    if b" 200 " not in status:
        raise ValueError(f"the server answered {status!r}: {await reader.read(2000)!r}")
    first_s, usage = 0.0, b""
    while True:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ValueError("the stream ended before its end")
        if not line.startswith(b"data: "):
            continue
        first_s = first_s or time.perf_counter() - started_s
        if line.startswith(b"data: [DONE]"):
            break
        if b'"usage"' in line:
            usage = line
    if not usage:
        raise ValueError("the stream carried no usage")
    return first_s, int(json.loads(usage[len(b"data: ") :])["usage"]["completion_tokens"])


async def _together(port: int, requests: Sequence[dict[str, Any]]) -> list[Run]:
    return await asyncio.gather(*(stream(port, request) for request in requests))


def streams(port: int, requests: Sequence[dict[str, Any]]) -> tuple[Run, list[Run]]:
    """All requests at once: the whole as one run, and each."""
    started_s = time.perf_counter()
    runs = asyncio.run(_together(port, requests))
    seconds = time.perf_counter() - started_s
    return Run(sum(run.num_tokens for run in runs), seconds), runs
