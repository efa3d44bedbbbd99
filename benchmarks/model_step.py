"""Cost of one model step on CPU: ours in float32 and int8 against transformers' own forward.

    python -m benchmarks.model_step --model DIR [--threads 2] [--context 200]

On a machine that does other work too, set OMP_WAIT_POLICY=passive: threads that spin at a barrier
for a neighbour that is not running cost more than the whole step.

Every round times each side once, in turn, so that a busy machine slows all alike; the median over
rounds is printed with the ratio to transformers on the same number of rows.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.model.executor import build_executor
from specdec.step_plan import StepPlan

BLOCK_SIZE = 16


def paged_step(model: str, quantization: str, context: int) -> Callable[[int], None]:
    """A function that runs one decode step of `rows` tokens after `context` cached ones."""
    executor = build_executor(
        ModelConfig(model=model, quantization=quantization, device="cpu"),
        CacheConfig(block_size=BLOCK_SIZE, num_blocks=4 + (context + 64) // BLOCK_SIZE),
        SchedulerConfig(),
        8,
    )
    table = list(range(executor.num_blocks))
    prompt = StepPlan()
    prompt.add(list(range(100, 100 + context)), 0, table, BLOCK_SIZE, 1)
    executor.execute(prompt)

    def step(rows: int) -> None:
        plan = StepPlan()
        plan.add([7] * rows, context, table, BLOCK_SIZE, rows)
        executor.execute(plan)

    return step


def transformers_step(model: str, context: int) -> Callable[[int], None]:
    """The same step in transformers, with its own cache cut back after each call."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    cache = DynamicCache(config=reference.config)
    keyword = "cache" if _takes(reference, "cache") else "past_key_values"
    prompt = torch.arange(100, 100 + context)[None]
    with torch.inference_mode():
        reference(prompt, **{keyword: cache}, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def step(rows: int) -> None:
        ids = torch.full((1, rows), 7)
        reference(ids, **{keyword: cache}, use_cache=True)
        cache.crop(-rows)

    return step


def _takes(model: torch.nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def measure(sides: dict[str, Callable[[int], None]], rows: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each side, the sides taking turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():
        step(rows)
    for _ in range(rounds):
        for name, step in sides.items():
            start = time.perf_counter()
            step(rows)
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a local folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sides = {
        "transformers": transformers_step(arguments.model, arguments.context),
        "float32": paged_step(arguments.model, "none", arguments.context),
        "int8": paged_step(arguments.model, "int8", arguments.context),
    }
    print(f"{'rows':>4} " + " ".join(f"{name:>22}" for name in sides))
    for rows in (1, 2, 4, 5, 8):
        medians = measure(sides, rows, arguments.rounds)
        cells = (f"{ms:8.2f} ms ({medians['transformers'] / ms:5.2f}x)" for ms in medians.values())
        print(f"{rows:>4} " + " ".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
