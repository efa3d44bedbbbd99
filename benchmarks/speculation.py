"""Figure 2: speculation `auto` against off, batch 1, for each Spec-Bench category.

    python -m benchmarks.speculation [--per-category 4] [--quantization int8]

Three engines of one process take turns on prompts that are all different: without speculation,
with n-gram lookup, and with an int8 draft of the same weights beside it. The controllers start
knowing nothing, as after a restart, and learn from the prompts in the order they are printed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

import torch

from benchmarks.local_runs import AUTO, EngineRun, build, greedy, run_engine
from benchmarks.measure import Run, cpu_ratio, machine, speed_ratio, total_rate, verdict
from benchmarks.options import Options, add_arguments, read
from specdec.engine import Engine

OFF_SIDE = "off"
GAINING = ("summarization", "rag")
GAIN_AIM, LEAST_AIM = 1.2, 0.95


@dataclass(slots=True)
class Side:
    """One engine and what it did, by category."""

    engine: Engine
    runs: dict[str, list[EngineRun]] = field(default_factory=dict)

    def run(self, category: str, token_ids: list[int], max_tokens: int) -> EngineRun:
        done = run_engine(self.engine, token_ids, greedy(max_tokens, AUTO))
        self.runs.setdefault(category, []).append(done)
        return done

    def timed(self, category: str) -> list[Run]:
        return [done.run for done in self.runs[category]]


def run(options: Options, quantization: str, drafter_sets: list[tuple[str, ...]]) -> None:
    prompts = options.prompts()
    sides = {"+".join(names) or OFF_SIDE: names for names in [(), *drafter_sets]}
    built = {
        name: Side(build(options.model, quantization, drafters, options.threads))
        for name, drafters in sides.items()
    }
    for index, prompt in enumerate(prompts):
        token_ids = prompt.token_ids(options.tokenizer)
        names = list(built)
        turn = index % len(names)
        last: dict[str, list[Run]] = {}
        for name in names[turn:] + names[:turn]:
            last[name] = [built[name].run(prompt.category, token_ids, options.max_tokens).run]
        options.progress(f"{prompt.category:15} {len(token_ids):5} prompt tokens", last)
    print(f"speculation auto against off, batch 1, target {quantization}; {len(prompts)} prompts")
    for name, side in built.items():
        if name != OFF_SIDE:
            report(name, side, built[OFF_SIDE])


def report(name: str, side: Side, off: Side) -> None:
    """A line for each category, then the aims."""
    print(f" drafters: {name}")
    ratios = {}
    for category in sorted(side.runs):
        ratio = speed_ratio(side.timed(category), off.timed(category))
        cpu = cpu_ratio(side.timed(category), off.timed(category))
        ratios[category] = ratio.value
        rates = (total_rate(side.timed(category)), total_rate(off.timed(category)))
        print(
            f"  {category:15} {ratio}, CPU time {cpu:.2f}x"
            f"  {rates[0]:6.1f} against {rates[1]:6.1f} tokens/s"
            f"  {what_was_drafted(side.runs[category])}"
        )
    for category in GAINING:
        print(verdict(f"{name}, {category}", ratios[category], GAIN_AIM))
    slowest = min(ratios, key=lambda category: ratios[category])
    print(verdict(f"{name}, slowest category ({slowest})", ratios[slowest], LEAST_AIM))
    same, total = equal_texts(side, off)
    print(f"  same text as without speculation: {same} of {total}")
    snapshot = side.engine.stats().controller
    print(f"  controller: {snapshot}", flush=True)


def what_was_drafted(runs: list[EngineRun]) -> str:
    """Acceptance rate, and how many steps ran at each K."""
    steps: Counter[int] = Counter()
    drafted = accepted = 0
    drafters: Counter[str] = Counter()
    for done in runs:
        assert done.metrics is not None
        stats = done.metrics.stats
        steps.update(stats.per_step_drafted)
        steps[0] += stats.num_steps - len(stats.per_step_drafted)
        drafted += stats.num_draft_tokens
        accepted += stats.num_accepted_tokens
        drafters[done.metrics.drafter or "none"] += 1
    rate = f"accepted {accepted / drafted:4.0%}" if drafted else "nothing drafted"
    counts = " ".join(f"{k}:{count}" for k, count in sorted(steps.items()) if count)
    return f"{rate}, steps by K {counts}, drafters {dict(drafters)}"


def equal_texts(side: Side, off: Side) -> tuple[int, int]:
    pairs = [
        (ours.token_ids, theirs.token_ids)
        for category in side.runs
        for ours, theirs in zip(side.runs[category], off.runs[category], strict=True)
    ]
    return sum(ours == theirs for ours, theirs in pairs), len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, per_category=4)
    parser.add_argument("--quantization", default="none", choices=("none", "int8"))
    parser.add_argument(
        "--drafters",
        nargs="+",
        default=["ngram", "draft+ngram"],
        help="sets of drafters to compare with none, each joined by +",
    )
    arguments = parser.parse_args()
    options = read(arguments)
    torch.set_num_threads(options.threads)
    print(machine())
    run(options, arguments.quantization, [tuple(each.split("+")) for each in arguments.drafters])


if __name__ == "__main__":
    main()
