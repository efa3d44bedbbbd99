"""What metrics and tracing cost: tokens per second with them over tokens per second without.

    python -m benchmarks.observability_cost [--streams 8] [--repeats 5]

Both sides run in turn on one engine in this process, `--streams` requests at once. With: the
engine counts, every request passes the gateway's and the target's tracing at default sampling and
is exported over HTTP to a collector on a thread of this process, and the fleet's text is written
once a second, which is 15 times as often as it is scraped. Without: nothing counts, nothing
stands between. What Serve itself adds is on neither side; the controller's tallies are on both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.local_runs import build
from benchmarks.measure import Run, Stopwatch, cpu_ratio, machine, speed_ratio, verdict
from benchmarks.options import Options, add_arguments, read
from benchmarks.serving import prompt_sets
from deployments.fleet_ledger import FleetLedger
from deployments.metrics import exposition
from deployments.readings import counters_of
from deployments.request_records import Call, RequestRecords
from deployments.settings import TracingSettings
from deployments.target import TargetDescription
from deployments.target_traces import TargetTraces
from deployments.tracing import Tracing, start_tracing
from specdec.engine.async_engine import AsyncEngine
from specdec.engine.counters import EngineCounters
from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import RequestMetrics, SequenceOutput
from specdec.sequence import Sequence as Running
from specdec.speculation.controller import StepResult

AIM = 0.98
FIXED_K = 2
SCRAPE_EVERY_S = 1.0


class Silent(EngineCounters):
    """Counters that do not count."""

    def record_verify(
        self, num_drafted: int, num_accepted: int, num_kept: int, traffic_class: str | None = None
    ) -> None:
        pass

    def record_output(self, sequence: Running, num_kept: int, now_s: float) -> None:
        pass

    def record_end(self, metrics: RequestMetrics, finish_reason: str) -> None:
        pass

    def record_step(self, result: StepResult) -> None:
        pass


class Collector(ThreadingHTTPServer):
    """Takes spans and forgets them."""

    num_posts = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.num_posts += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def tracing_to_a_collector(
    sample_ratio: float | None = None,
) -> Iterator[tuple[Tracing, Collector]]:
    """Tracing as in a deployment; at default sampling unless told otherwise."""
    collector = Collector()
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    settings = TracingSettings(enabled=True, endpoint=f"http://127.0.0.1:{collector.server_port}")
    if sample_ratio is not None:
        settings = settings.model_copy(update={"sample_ratio": sample_ratio})
    tracing = start_tracing(settings, "bench", "one")
    assert tracing is not None
    try:
        yield tracing, collector
    finally:
        tracing.shutdown()
        collector.shutdown()


class Sides:
    """One engine, with everything switched on or off."""

    def __init__(self, engine: AsyncEngine, tracing: Tracing) -> None:
        self._engine = engine
        self._traces = TargetTraces(tracing)
        self._records = RequestRecords(self, "bench", tracing, log_requests=False)
        self._counters = engine.engine.counters
        self._ids = itertools.count()
        self.num_scrapes = 0

    async def merged(
        self, requests: list[GenerateRequest]
    ) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        """Stands where the gateway's target client stands."""
        async with aclosing(self._traces.outputs(requests[0], self._engine.generate)) as outputs:
            async for output in outputs:
                yield 0, output

    def observed(self, prompts: Sequence[list[int]], params: SamplingParams) -> Run:
        self._engine.engine.counters = self._counters
        return asyncio.run(self._observed(prompts, params))

    async def _observed(self, prompts: Sequence[list[int]], params: SamplingParams) -> Run:
        scraper = asyncio.create_task(self._scrape())
        watch = Stopwatch()
        counts = await asyncio.gather(
            *(
                _drained(self._records.outputs([request], Call("chat", request.request_id)))
                for request in self._requests(prompts, params)
            )
        )
        run = watch.run(sum(counts))
        scraper.cancel()
        with suppress(asyncio.CancelledError):
            await scraper
        return run

    async def _scrape(self) -> None:
        ledger = FleetLedger()
        while True:
            stats = self._engine.engine.stats()
            target = TargetDescription("one", 0, 0, 0, (), stats, None, {})
            ledger.merge({"one": counters_of(target)})
            exposition("bench", [target], ledger.totals())
            self.num_scrapes += 1
            await asyncio.sleep(SCRAPE_EVERY_S)

    def bare(self, prompts: Sequence[list[int]], params: SamplingParams) -> Run:
        self._engine.engine.counters = Silent()
        return asyncio.run(self._bare(prompts, params))

    async def _bare(self, prompts: Sequence[list[int]], params: SamplingParams) -> Run:
        watch = Stopwatch()
        requests = self._requests(prompts, params)
        counts = await asyncio.gather(
            *(_drained(_numbered(self._engine.generate(request))) for request in requests)
        )
        return watch.run(sum(counts))

    def _requests(
        self, prompts: Sequence[list[int]], params: SamplingParams
    ) -> list[GenerateRequest]:
        """Each with cached text and n-grams of its own, or the side that goes second would profit
        from what the first has left."""
        names = [f"bench-{next(self._ids)}" for _ in prompts]
        return [
            GenerateRequest(name, ids, params, partition=name)
            for name, ids in zip(names, prompts, strict=True)
        ]


async def _numbered(
    outputs: AsyncGenerator[SequenceOutput, None],
) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
    """The same shape as on the other side, so that only what is measured differs."""
    async with aclosing(outputs) as each:
        async for output in each:
            yield 0, output


async def _drained(outputs: AsyncGenerator[tuple[int, SequenceOutput], None]) -> int:
    return sum([len(output.token_ids) async for _, output in outputs])


def compare(
    sides: Sides, batches: Sequence[list[list[int]]], params: SamplingParams, options: Options
) -> tuple[list[Run], list[Run]]:
    """Runs with and without, batch by batch, the first to go changing."""
    observed: list[Run] = []
    bare: list[Run] = []
    for index, prompts in enumerate(batches):
        turns = [(observed, sides.observed), (bare, sides.bare)]
        for runs, side in turns if index % 2 == 0 else turns[::-1]:
            runs.append(side(prompts, params))
        options.progress(f"batch {index}", {"with": observed, "without": bare})
    return observed, bare


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, per_category=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    options = read(arguments)
    size, repeats = arguments.streams, arguments.repeats
    batches = prompt_sets(options, size, repeats)
    engine = AsyncEngine(
        build(options.model, drafters=("ngram",), threads=options.threads, max_num_sequences=size)
    )
    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=0,
        ignore_eos=True,
        # K is fixed, or the controller's trials would differ between the sides.
        speculation=SpeculationParams(mode="fixed", k=FIXED_K),
    )
    print(machine())
    with tracing_to_a_collector() as (tracing, _):
        sides = Sides(engine, tracing)
        compare(sides, batches[:1], params, options)  # warms both
        observed, bare = compare(sides, batches, params, options)
    engine.shutdown()
    ratio = speed_ratio(observed, bare)
    print(f"{size} streams, with metrics and tracing over without: {ratio}")
    print(f"the same in CPU seconds: {cpu_ratio(observed, bare):.3f}x")
    print(verdict("speed with over without", ratio.value, AIM))


if __name__ == "__main__":
    main()
