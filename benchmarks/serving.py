"""Figures 3, 4 and 6: what Serve costs, time to the first token, start and memory.

    python -m benchmarks.serving [--streams 8] [--repeats 5] [--parts throughput ttft]

Throughput: `--streams` concurrent HTTP streams through proxy, gateway and target, against the same
engine in this process at the same batch size and thread count, speculation off on both sides. Time
to the first token: the same prompts with speculation auto and off, in turn; a salt keeps the prefix
cache out.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch

from benchmarks.local_runs import build, run_batch
from benchmarks.measure import Run, machine, percentile, speed_ratio, total_rate, verdict
from benchmarks.options import Options, add_arguments, read
from benchmarks.served_demo import Demo, body, demo_config, serving, streams
from specdec.params import SamplingParams

SERVED_THREADS = 1  # as in the demo's config: one core for the target, the other for the rest
SHARE_AIM, TTFT_AIM, FIRST_AIM, MEMORY_AIM_GIB = 0.70, 1.05, 1.5, 5.0
START_AIM_S = 600.0
NUM_FIRST = 10
NUM_FIRST_TOKENS = 64  # on each side: their spread is some ten per cent
RESTART_TIMEOUT_S = 120.0
OFF, AUTO = {"mode": "off"}, {"mode": "auto"}
SHORT = ("qa", "translation")
PARTS = ("throughput", "ttft", "restart", "memory")

_salts = itertools.count()


def request(prompt: list[int], max_tokens: int, speculation: dict[str, str]) -> dict[str, object]:
    """No two requests share cached text."""
    salt = f"bench-{next(_salts)}"
    fields = {"speculation": speculation, "cache_salt": salt, "ignore_eos": True}
    return body(prompt, max_tokens, **fields)


def prompt_sets(options: Options, size: int, repeats: int) -> list[list[list[int]]]:
    """`repeats` batches of `size` prompts of short questions."""
    needed = size * repeats
    chosen = [p for category in SHORT for p in options.prompts(needed, category)]
    endless = itertools.cycle([prompt.token_ids(options.tokenizer) for prompt in chosen])
    return [[next(endless) for _ in range(size)] for _ in range(repeats)]


def throughput(options: Options, demo: Demo, quantization: str, size: int, repeats: int) -> None:
    """Figure 3."""
    engine = build(options.model, quantization, threads=SERVED_THREADS, max_num_sequences=16)
    params = SamplingParams(max_tokens=options.max_tokens, temperature=0, ignore_eos=True)
    served: list[Run] = []
    local: list[Run] = []
    spent: Counter[str] = Counter()

    def over_http(prompts: list[list[int]]) -> None:
        requests = [request(ids, options.max_tokens, OFF) for ids in prompts]
        before, own_before_s = demo.cpu_seconds(), time.process_time()
        served.append(streams(demo.port, requests)[0])
        spent["this client"] += time.process_time() - own_before_s
        for name, seconds in demo.cpu_seconds().items():
            spent[name] += seconds - before.get(name, 0.0)

    def in_process(prompts: list[list[int]]) -> None:
        local.append(run_batch(engine, prompts, params))

    turns: list[Callable[[list[list[int]]], None]] = [over_http, in_process]
    for index, prompts in enumerate(prompt_sets(options, size, repeats)):
        for side in turns if index % 2 == 0 else turns[::-1]:
            side(prompts)
        options.progress(f"batch {index}", {"served": served, "local": local})
    engine.shutdown()
    ratio = speed_ratio(served, local)
    print(f"{size} HTTP streams against the in-process engine, {quantization}, speculation off")
    print(f"  served {total_rate(served):6.1f} against {total_rate(local):6.1f} tokens/s  {ratio}")
    num_tokens, seconds = sum(run.num_tokens for run in served), sum(run.seconds for run in served)
    print(f"  CPU time while serving, of {seconds:.1f} s, in ms per token:")
    for name, cpu_s in spent.most_common(7):
        print(f"    {1000 * cpu_s / num_tokens:6.2f}  {cpu_s / seconds:4.0%} of a core  {name}")
    local_cpu_s = sum(run.cpu_s for run in local)
    print(f"    {1000 * local_cpu_s / num_tokens:6.2f}  the engine alone, in this process")
    if quantization == "none":
        print(verdict("share of the engine's speed", ratio.value, SHARE_AIM))


def time_to_first_token(options: Options, demo: Demo, size: int, repeats: int) -> None:
    """Figure 4, speculation auto against off."""
    times: dict[str, list[float]] = {"auto": [], "off": []}
    for index, prompts in enumerate(prompt_sets(options, size, repeats)):
        order = (("auto", AUTO), ("off", OFF))
        for name, speculation in order if index % 2 == 0 else order[::-1]:
            requests = [request(ids, 16, speculation) for ids in prompts]
            times[name] += [run.first_s for run in streams(demo.port, requests)[1]]
    medians = {name: 1000 * statistics.median(found) for name, found in times.items()}
    print(f"time to first token, {size} stream(s), {len(times['auto'])} requests a side")
    for name, found in times.items():
        late = 1000 * percentile(found, 90)
        print(f"  speculation {name:4}: p50 {medians[name]:7.1f} ms, p90 {late:7.1f} ms")
    print(verdict("p50, auto over off", medians["auto"] / medians["off"], TTFT_AIM, False))


def first_requests(options: Options, demo: Demo, when: str) -> None:
    """Figure 4, the first request against the tenth: the same prompt, never cached."""
    prompt = options.prompts(1, "qa")[0].token_ids(options.tokenizer)
    times = []
    for _ in range(NUM_FIRST):
        runs = streams(demo.port, [request(prompt, 16, AUTO)])[1]
        times.append(1000 * runs[0].first_s)
    shown = " ".join(f"{each:.0f}" for each in times)
    print(f"time to first token {when}, requests 1-{NUM_FIRST}: {shown} ms")
    print(verdict("the first over the tenth", times[0] / times[-1], FIRST_AIM, False))


def restart_draft(demo: Demo) -> None:
    """Kill the draft's replica and wait until another one has taken its place and is warm."""
    old = demo.replicas("Draft")[0]
    old.kill()
    deadline_s = time.monotonic() + RESTART_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if any(each.pid != old.pid for each in demo.replicas("Draft")):
            return
        time.sleep(0.2)
    raise RuntimeError("the draft was not replaced")


def memory(demo: Demo) -> None:
    """Figure 6. Proportional set size: what processes share counts once."""
    found = {name: size for name, size in demo.resident_bytes().items() if size}
    total = sum(found.values()) / 2**30
    print(f"from the command to the first answer: {demo.start_s:.1f} s, model already on disk")
    print(verdict("seconds to the first answer", demo.start_s, START_AIM_S, False))
    print("resident memory, shared pages counted once:")
    for name, size in sorted(found.items(), key=lambda item: -item[1])[:8]:
        print(f"  {size / 2**20:7.0f} MiB  {name}")
    print(verdict("GiB in all", total, MEMORY_AIM_GIB, False))


def run(options: Options, parts: list[str], size: int, repeats: int) -> None:
    options.prompts(1)
    with serving(demo_config({"model": options.model})) as demo:
        if "ttft" in parts:
            first_requests(options, demo, "after start")
        if "memory" in parts:
            memory(demo)
        if "throughput" in parts:
            throughput(options, demo, "none", size, repeats)
        if "ttft" in parts:
            for streams_now in (1, size):
                time_to_first_token(
                    options, demo, streams_now, max(repeats, NUM_FIRST_TOKENS // streams_now)
                )
        if "restart" in parts:
            restart_draft(demo)
            first_requests(options, demo, "after a draft restart")
    if "throughput" in parts:
        with serving(demo_config({"model": options.model, "quantization": "int8"})) as demo:
            throughput(options, demo, "int8", size, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, per_category=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    options = read(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the demo must not outlive this process
    torch.set_num_threads(SERVED_THREADS)
    print(machine())
    run(options, arguments.parts, arguments.streams, arguments.repeats)


if __name__ == "__main__":
    main()
