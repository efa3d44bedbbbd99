"""Figure 1: the engine without speculation against transformers' `generate`, batch 1.

    python -m benchmarks.engine_speed [--per-category 3] [--max-tokens 64]

Same weights, same prompts, greedy, EOS respected, prefill included. Transformers runs in float32;
the engine in float32 and in int8.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.local_runs import EngineRun, build, greedy, run_engine, transformers_runner
from benchmarks.measure import Run, cpu_ratio, machine, speed_ratio, total_rate, verdict
from benchmarks.options import Options, parse

AIMS = {"float32": 1.3, "int8": 3.0}
REFERENCE = "transformers"


def sides(options: Options) -> dict[str, Callable[[list[int]], EngineRun]]:
    """The three ways to continue a prompt, each warm."""
    params = greedy(options.max_tokens)
    float32 = build(options.model, threads=options.threads)
    int8 = build(options.model, "int8", threads=options.threads)
    return {
        REFERENCE: transformers_runner(options.model, options.max_tokens),
        "float32": lambda token_ids: run_engine(float32, token_ids, params),
        "int8": lambda token_ids: run_engine(int8, token_ids, params),
    }


def run(options: Options) -> None:
    prompts = options.prompts()
    by_side = sides(options)
    runs: dict[str, list[Run]] = {name: [] for name in by_side}
    num_equal = 0
    for index, prompt in enumerate(prompts):
        token_ids = prompt.token_ids(options.tokenizer)
        names = list(by_side)
        texts = {}
        for name in names[index % 3 :] + names[: index % 3]:
            done = by_side[name](token_ids)
            runs[name].append(done.run)
            texts[name] = done.token_ids
        num_equal += texts["float32"] == texts[REFERENCE]
        options.progress(f"{prompt.category:15} {len(token_ids):5} prompt tokens", runs)
    print(f"engine, speculation off, against transformers generate; {len(prompts)} prompts")
    print(f"  {REFERENCE:12} {total_rate(runs[REFERENCE]):7.1f} tokens/s")
    for name, aim in AIMS.items():
        ratio = speed_ratio(runs[name], runs[REFERENCE])
        cpu = cpu_ratio(runs[name], runs[REFERENCE])
        print(f"  {name:12} {total_rate(runs[name]):7.1f} tokens/s  {ratio}, CPU time {cpu:.2f}x")
        print(verdict(f"{name} over transformers float32", ratio.value, aim))
    print(f"  same text in float32 on {num_equal} of {len(prompts)} prompts", flush=True)


def main() -> None:
    options = parse(__doc__, per_category=3)
    torch.set_num_threads(options.threads)
    print(machine())
    run(options)


if __name__ == "__main__":
    main()
