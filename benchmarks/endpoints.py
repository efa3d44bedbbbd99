"""How long the operators' endpoints take while the demo is busy.

    python -m benchmarks.endpoints [--streams 8] [--rounds 100]

`--streams` HTTP streams run all the time; beside them the page, its largest file, what it polls and
what Prometheus scrapes are asked for in turn. `/version` does nothing and is the floor: proxy,
gateway, and this client on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Sequence

import httpx

from benchmarks.measure import machine, percentile, verdict
from benchmarks.options import Options, add_arguments, read
from benchmarks.served_demo import HOST, Demo, body, demo_config, serving, stream
from benchmarks.serving import prompt_sets

FLOOR = "/version"
PATHS = ("/", "/page/uplot/uPlot.esm.js", "/live", "/metrics", FLOOR)
AIM_MS = 100.0
WARM_UP_S = 8.0
PAUSE_S = 0.3
TIMEOUT_S = 30.0


async def keep_busy(demo: Demo, prompts: Sequence[list[int]], max_tokens: int) -> None:
    """One client that asks again as soon as it is answered."""
    for prompt in itertools.cycle(prompts):
        await stream(demo.port, body(prompt, max_tokens))


async def ask(demo: Demo, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call. Raises httpx.HTTPError for anything but a 200."""
    taken: dict[str, list[float]] = {path: [] for path in PATHS}
    async with httpx.AsyncClient(
        base_url=f"http://{HOST}:{demo.port}", timeout=TIMEOUT_S
    ) as client:
        for _ in range(rounds):
            for path in PATHS:
                began_s = time.perf_counter()
                (await client.get(path)).raise_for_status()
                taken[path].append(1000 * (time.perf_counter() - began_s))
            await asyncio.sleep(PAUSE_S)
    return taken


async def under_load(
    demo: Demo, options: Options, num_streams: int, rounds: int
) -> dict[str, list[float]]:
    prompts = prompt_sets(options, num_streams, repeats=4)
    clients = [
        asyncio.create_task(keep_busy(demo, own, options.max_tokens))
        for own in zip(*prompts, strict=True)
    ]
    try:
        await asyncio.sleep(WARM_UP_S)
        return await ask(demo, rounds)
    finally:
        for client in clients:
            client.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
        failures = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
        if failures:
            raise SystemExit(f"streams that failed, so that the load was less: {failures}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, per_category=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    options = read(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the demo must not outlive this process
    print(machine())
    with serving(demo_config({"model": options.model})) as demo:
        taken = asyncio.run(under_load(demo, options, arguments.streams, arguments.rounds))
    print(f"{arguments.streams} streams, {arguments.rounds} calls of each, milliseconds")
    for path, found in taken.items():
        p50, p95 = percentile(found, 50), percentile(found, 95)
        print(f"  {path:20} p50 {p50:6.1f}  p95 {p95:6.1f}  max {max(found):6.1f}")
    for path in PATHS:
        if path != FLOOR:
            print(verdict(f"{path}, p95", percentile(taken[path], 95), AIM_MS, at_least=False))


if __name__ == "__main__":
    main()
