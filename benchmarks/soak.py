"""The demo under half an hour of everything: good clients, bad clients, drafts that die.

    python -m benchmarks.soak [--minutes 30] [--streams 8] [--seed 0] [--json]

`--streams` clients of two tenants each do one thing after another: stream to the end over HTTP or
gRPC, leave in the middle, send garbage, half of a body, or stop reading. Meanwhile the draft is
stopped for a few seconds every two minutes and killed every eight. Afterwards it prints

- what the clients did, how many texts differ from those without speculation, and what else was
  not as promised
- the resident memory of each process five minutes after its start and at the end
- what is left once everybody has gone: sequences, KV blocks, draft sessions

and ends with status 1 where a text differed, a promise was broken, a process that lived from the
fifth minute to the end grew by 1 % or more, or something is left.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import psutil

from benchmarks.measure import machine
from benchmarks.served_demo import HOST, Demo, demo_config, serving, title
from benchmarks.soak_clients import Address, Crowd, Request, Tally, without_speculation
from benchmarks.soak_memory import Growth, MemoryWatch, growths
from specdec.config import ModelConfig
from specdec.model.catalog import resolve
from specdec.model.tokenizer import load_tokenizer

MODEL = "smollm2"
SETTLE_S = 300.0
MAX_GROWTH = 0.01
STOP_EVERY_S, STOPPED_S = 120.0, 8.0
KILL_EVERY_S = 480.0
DRAINED_TIMEOUT_S = 120.0
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a fox who",
    "def fibonacci(n):\n    ",
    "Repeat: one two three one two three one two",
    "Le petit chat",
    "The three primary colours are",
    "Water boils when",
    "今日は",
)
IDLE = {
    "specdec_requests_running": 0.0,
    "specdec_requests_waiting": 0.0,
    "specdec_kv_cache_usage_ratio": 0.0,
    "specdec_draft_busy_ratio": 0.05,
}


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys of two tenants and of the operator."""

    tenants: tuple[str, str] = ("soak-key-a", "soak-key-b")
    operator: str = "soak-key-operator"

    def entries(self) -> list[dict[str, Any]]:
        """As a keys file holds them."""
        tenants = [{"key": key, "tenant": f"tenant-{i}"} for i, key in enumerate(self.tenants)]
        return [*tenants, {"key": self.operator, "tenant": "operator", "operator": True}]


def requests(max_tokens: int) -> list[Request]:
    """Half greedy, half seeded; their texts are not known yet."""
    tokenizer = load_tokenizer(ModelConfig(model=str(resolve(MODEL))))
    found = []
    for number, text in enumerate(PROMPTS):
        params: dict[str, Any] = {"max_tokens": max_tokens}
        params |= {"temperature": 0} if number % 2 == 0 else {"temperature": 0.8, "seed": number}
        found.append(Request(tokenizer.encode(text), params))
    return found


class Trouble:
    """Stops and kills the draft, until it is ended."""

    def __init__(self, demo: Demo) -> None:
        self.num_stopped = self.num_killed = 0
        self._demo = demo
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trouble", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(2 * STOPPED_S)

    def _run(self) -> None:
        next_kill_s = time.monotonic() + KILL_EVERY_S
        while not self._ended.wait(STOP_EVERY_S):
            with suppress(psutil.Error):
                if time.monotonic() >= next_kill_s:
                    next_kill_s += KILL_EVERY_S
                    self._kill()
                else:
                    self._stop()

    def _kill(self) -> None:
        for process in self._demo.replicas("Draft"):
            process.kill()
            self.num_killed += 1

    def _stop(self) -> None:
        for process in self._demo.replicas("Draft"):
            process.suspend()
            try:
                self._ended.wait(STOPPED_S)
            finally:
                process.resume()
            self.num_stopped += 1


def metrics(address: Address, key: str) -> dict[str, float]:
    """The fleet's metrics, those of one name added up."""
    request = HttpRequest(
        f"http://{HOST}:{address.http_port}/metrics", headers={"Authorization": f"Bearer {key}"}
    )
    found: dict[str, float] = {}
    with urlopen(request, timeout=30) as response:
        for line in response.read().decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
    return found


def what_is_left(address: Address, key: str) -> dict[str, float]:
    """Metrics above what an idle service shows, once it had time to become idle."""
    deadline_s = time.monotonic() + DRAINED_TIMEOUT_S
    while True:
        found = metrics(address, key)
        left = {name: found[name] for name, idle in IDLE.items() if found[name] > idle}
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(2)


@dataclass(frozen=True, slots=True)
class Result:
    minutes: float
    tally: Tally
    num_stopped: int
    num_killed: int
    grown: list[Growth]
    left: dict[str, float]

    @property
    def is_clean(self) -> bool:
        return not (
            self.tally.counts["differing texts"]
            or self.tally.counts["complaints"]
            or self.left
            or any(each.share >= MAX_GROWTH for each in self.grown)
        )


def soak(demo: Demo, address: Address, keys: Keys, arguments: argparse.Namespace) -> Result:
    expected = [without_speculation(address, each) for each in requests(arguments.max_tokens)]
    crowd = Crowd(address, expected, arguments.streams, arguments.seed)
    memory, trouble = MemoryWatch(demo.processes, title), Trouble(demo)
    for each in (memory, crowd, trouble):
        each.start()
    began_s = time.monotonic()
    try:
        _wait(60 * arguments.minutes, demo, crowd.tally)
    finally:
        trouble.end()
    found = memory.end()
    crowd.end()
    return Result(
        minutes=(time.monotonic() - began_s) / 60,
        tally=crowd.tally,
        num_stopped=trouble.num_stopped,
        num_killed=trouble.num_killed,
        grown=growths(found, SETTLE_S),
        left=what_is_left(address, keys.operator),
    )


def _wait(seconds: float, demo: Demo, tally: Tally) -> None:
    """Until the time is over, telling every few minutes how it goes."""
    ends_s = time.monotonic() + seconds
    while (left_s := ends_s - time.monotonic()) > 0:
        time.sleep(min(120.0, left_s))
        if not demo.process.is_running():
            raise SystemExit("the service has ended")
        print(f"{left_s / 60:.0f} min left: {dict(tally.counts)}", file=sys.stderr, flush=True)


def report(result: Result) -> Iterator[str]:
    yield f"{result.minutes:.0f} minutes; draft stopped {result.num_stopped} times, "
    yield f"killed {result.num_killed} times"
    for what, number in sorted(result.tally.counts.items()):
        yield f"  {what}: {number}"
    yield from (f"  complaint: {each}" for each in result.tally.complaints)
    yield "| process | MiB after 5 min | MiB at the end | growth |"
    yield "|---|---|---|---|"
    for each in result.grown:
        yield (
            f"| {each.name} | {each.first / 2**20:.1f} | {each.last / 2**20:.1f} "
            f"| {100 * each.share:+.2f} % in {each.seconds / 60:.0f} min |"
        )
    yield f"left behind: {result.left or 'nothing'}"


@contextmanager
def served(keys: Keys) -> Iterator[tuple[Demo, Address]]:
    """The demo with keys for two tenants and an operator."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        file.write_text(json.dumps(keys.entries()))
        config = demo_config({})
        config["applications"][0]["args"]["gateway"] = {"api_keys_file": str(file)}
        address = Address(
            config["http_options"]["port"], config["grpc_options"]["port"], keys.tenants
        )
        with serving(config, key=keys.tenants[0]) as demo:
            yield demo, address


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the demo must not outlive this process
    keys = Keys()
    with served(keys) as (demo, address):
        result = soak(demo, address, keys, parsed)
    if parsed.json:
        print(json.dumps({"machine": machine(), **asdict(result)}, default=vars))
    else:
        print(machine(), *report(result), sep="\n")
    if not result.is_clean:
        sys.exit(1)


if __name__ == "__main__":
    main()
