"""Everything that is slow the first time, done before the engine reports ready.

Kernels are prepared per number of rows, so each reachable number is run once; then one short
request per verification rule goes through the whole step. Users then find the first request as
fast as the tenth.
"""

from __future__ import annotations

from collections.abc import Iterator

from specdec.engine.engine import Engine
from specdec.engine.request import GenerateRequest
from specdec.model.executor import Executor
from specdec.params import SamplingParams
from specdec.step_plan import StepPlan

NUM_EXACT_ROWS = 16
ROW_STRIDE = 64


def warm_up(engine: Engine) -> None:
    """Run every reachable shape, then one request per verification rule."""
    max_num_tokens = engine.scheduler.config.max_num_batched_tokens
    warm_up_executor(engine.executor, max_num_tokens, engine.scheduler.config.max_num_sequences)
    num_prompt_tokens = min(8, engine.limits.max_model_len - 4)
    prompt = [1] * max(1, num_prompt_tokens)
    wishes = [
        SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=1),
        SamplingParams(max_tokens=4, temperature=1.0, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=4, temperature=1.0, top_p=0.9, ignore_eos=True),
    ]
    requests = [GenerateRequest(f"warm-up-{i}", prompt, p) for i, p in enumerate(wishes)]
    for _ in engine.generate(requests):
        pass
    engine.reset_counters()


def warm_up_executor(executor: Executor, max_num_tokens: int, max_num_sequences: int) -> None:
    """Run each reachable number of rows once: one sequence of that many tokens, then batches."""
    num_slots = executor.num_blocks * executor.block_size
    longest = min(max_num_tokens, num_slots, executor.model_max_len)
    for num_rows in _row_counts(longest):
        executor.execute(_one_sequence(num_rows, executor.block_size))
    for num_sequences in range(2, min(max_num_sequences, executor.num_blocks, longest) + 1):
        executor.execute(_batch(num_sequences, executor.block_size))


def _row_counts(longest: int) -> Iterator[int]:
    yield from range(1, min(NUM_EXACT_ROWS, longest) + 1)
    yield from range(ROW_STRIDE, longest, ROW_STRIDE)
    if longest > NUM_EXACT_ROWS:
        yield longest


def _one_sequence(num_tokens: int, block_size: int) -> StepPlan:
    plan = StepPlan()
    table = list(range(-(-num_tokens // block_size)))
    plan.add([1] * num_tokens, 0, table, block_size, min(num_tokens, NUM_EXACT_ROWS))
    return plan


def _batch(num_sequences: int, block_size: int) -> StepPlan:
    plan = StepPlan()
    for block in range(num_sequences):
        plan.add([1], 0, [block], block_size, 1)
    return plan
