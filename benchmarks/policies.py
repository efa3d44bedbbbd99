"""Policies for K on recorded requests: the adaptive controller against every fixed K and the rest.

    python -m benchmarks.policies [--data FOLDER] [--only ngram eagle both ramp] [--quick]

Virtual time, on the step times of Llama-3.1-8B with an EAGLE head (arXiv 2601.11580): no model
runs, and a busy machine changes nothing but how long this takes (about 20 minutes on two cores).
For every drafter, data set and concurrency all policies decode the same requests from the same
seed, 200 steps of warm-up not counted: each fixed K from 0 to 16, the published rules, the
controller, and the oracle, which sees what cannot be seen. Prints ratios of goodput and verdicts.
FOLDER holds accept_trace_*.jsonl.gz (default: ../shared/data).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import verdict
from specdec.simulation.closed_runs import ClosedScenario, compare, constant, ramp
from specdec.simulation.machines import make_machine
from specdec.simulation.traces import load_traces

SETS = ("instructcoder", "sharegpt", "gsm8k", "cnn", "mix")
DRAFTERS = {"ngram": ("ngram",), "eagle": ("eagle",), "both": ("eagle", "ngram")}
MAX_K = 16
RULES = ("threshold", "vllm", "sglang", "turbospec", "hf")
# As many tokens at every concurrency, within what takes minutes.
STEPS = {1: 6000, 8: 3000, 32: 1500, 128: 800, 256: 500}
QUICK_SHARE = 8
RAMP_STEPS = 3000
RAMP_FIXED = range(MAX_K + 1)
PER_REQUEST = {
    "instructcoder": {8: 1.10, 32: 1.18, 128: 1.12, 256: 1.09},
    "sharegpt": dict.fromkeys((8, 32, 128, 256), 1.03),
    "mix": {8: 1.02, 32: 1.02, 128: 1.05, 256: 1.04},
}
BOTH_DRAFTERS = {
    "mix": {8: 1.12, 32: 1.08},
    "instructcoder": {8: 1.25, 32: 1.23},
    "sharegpt": {8: 1.20, 32: 1.12},
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison. concurrency None: a load ramp 1 -> 256 -> 1."""

    drafter: str
    data: str
    concurrency: int | None
    num_steps: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Goodput by policy, in tokens per second, and what else is told of the controller."""

    cell: Cell
    goodput: dict[str, float]
    mean_k: float
    switches: float
    num_unaligned: int

    @property
    def best_fixed(self) -> str:
        fixed = [name for name in self.goodput if name.startswith("fixed:")]
        return max(fixed, key=lambda name: self.goodput[name])

    def ratio(self, to: str) -> float:
        """The controller's goodput over another policy's."""
        return self.goodput["adaptive"] / self.goodput[to]


def measure(job: tuple[Cell, Path]) -> Measured:
    """Run every policy of a cell."""
    cell, folder = job
    names = SETS[:-1] if cell.data == "mix" else (cell.data,)
    paths = [folder / f"accept_trace_{name}.jsonl.gz" for name in names]
    drafters = DRAFTERS[cell.drafter]
    traces = load_traces(paths, drafters)
    if cell.concurrency is None:
        levels = ramp((1, 256, 1), cell.num_steps)
    else:
        levels = constant(cell.concurrency, cell.num_steps)
    scenario = ClosedScenario(
        traces.requests, drafters, make_machine("llama-8b", drafters), levels, seed=0, max_k=MAX_K
    )
    fixed = [f"fixed:{name}:{k}" for name in drafters for k in range(MAX_K + 1)]
    runs = compare(scenario, ["adaptive", *fixed, *RULES, "oracle"])
    goodput = {run.setting.name: run.total.goodput_tokens_per_s for run in runs}
    adaptive = runs[0].total
    return Measured(
        cell, goodput, adaptive.mean_k, adaptive.switches_per_1000_steps, traces.num_unaligned
    )


def cells(only: Sequence[str], share: int) -> list[Cell]:
    """The largest first, so that two processes end at about the same time."""
    steps = {batch: max(count // share, 100) for batch, count in STEPS.items()}
    chosen = [
        Cell(drafter, data, batch, count)
        for drafter in DRAFTERS
        if drafter in only
        for data in SETS
        for batch, count in steps.items()
        if drafter != "both" or batch <= 32
    ]
    if "ramp" in only:
        chosen += [Cell(drafter, "mix", None, RAMP_STEPS // share) for drafter in DRAFTERS]
    return sorted(chosen, key=lambda cell: -(cell.concurrency or 512))


HEADER = (
    f"{'drafter':8}{'data':15}{'load':>6}{'off':>8}{'best K':>14}{'/best':>7}"
    + "".join(f"{'/' + name:>11}" for name in RULES)
    + f"{'/oracle':>9}{'mean K':>8}{'switches':>10}"
)


def row(result: Measured) -> str:
    cell = result.cell
    load = "ramp" if cell.concurrency is None else str(cell.concurrency)
    off = result.ratio(f"fixed:{DRAFTERS[cell.drafter][0]}:0")
    best = result.best_fixed
    return (
        f"{cell.drafter:8}{cell.data:15}{load:>6}{off:8.3f}{best.removeprefix('fixed:'):>14}"
        f"{result.ratio(best):7.3f}"
        + "".join(f"{result.ratio(name):11.3f}" for name in RULES)
        + f"{result.ratio('oracle'):9.3f}{result.mean_k:8.2f}{result.switches:10.1f}"
    )


def judge(results: Sequence[Measured]) -> None:
    """Print each aim beside what was reached."""
    level = [r for r in results if r.cell.concurrency is not None]
    for drafter in DRAFTERS:
        mine = [r for r in level if r.cell.drafter == drafter]
        if not mine:
            continue
        if drafter != "both":
            lowest("best fixed K", mine, [r.ratio(r.best_fixed) for r in mine])
            lowest("no speculation", mine, [r.ratio(f"fixed:{drafter}:0") for r in mine])
        for name in ("vllm", "sglang"):
            share = sum(r.ratio(name) > 1 for r in mine) / len(mine)
            print(verdict(f"{drafter}, share of cells better than {name}", share, 0.95))
            lowest(name, mine, [r.ratio(name) for r in mine])
    for drafter, aims in (("ngram", PER_REQUEST), ("both", BOTH_DRAFTERS)):
        for r in (r for r in level if r.cell.drafter == drafter):
            aim = aims.get(r.cell.data, {}).get(r.cell.concurrency or 0)
            if aim is not None:
                name = f"{drafter}, {r.cell.data} at {r.cell.concurrency}, over the best fixed K"
                print(verdict(name, r.ratio(r.best_fixed), aim))
    for r in (r for r in results if r.cell.concurrency is None):
        name = f"{r.cell.drafter}, ramp 1 to 256 to 1, over"
        print(verdict(f"{name} the best fixed K", r.ratio(r.best_fixed), 1.05))
        print(verdict(f"{name} the threshold rule", r.ratio("threshold"), 1.03))


def lowest(name: str, results: Sequence[Measured], ratios: Sequence[float]) -> None:
    """The worst cell of a drafter against one policy."""
    worst = min(range(len(results)), key=ratios.__getitem__)
    cell = results[worst].cell
    where = f"{cell.drafter}, lowest over {name} ({cell.data} at {cell.concurrency})"
    print(verdict(where, ratios[worst], 0.99))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--only", nargs="+", default=[*DRAFTERS, "ramp"])
    parser.add_argument("--quick", action="store_true", help="an eighth of the steps")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    jobs = [
        (cell, arguments.data)
        for cell in cells(arguments.only, QUICK_SHARE if arguments.quick else 1)
    ]
    print(HEADER, flush=True)
    results = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for result in pool.map(measure, jobs):
            print(row(result), flush=True)
            results.append(result)
    judge(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
