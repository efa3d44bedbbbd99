"""Everything that is slow the first time, done before the engine reports ready.

Kernels are prepared per number of rows, so each reachable number is run once; then short requests
for each verification rule go through the whole step. Users then find the first request as fast as
the tenth. What it takes is told to the controller; what is accepted is not: it is no traffic.
"""

from __future__ import annotations

from collections.abc import Iterator

from specdec.engine.engine import Engine
from specdec.engine.profiling import StepLimits, StepShape, measure_steps, step_shapes
from specdec.engine.rehearsal import Rehearsal
from specdec.engine.request import GenerateRequest
from specdec.model.executor import Executor
from specdec.params import SamplingParams
from specdec.speculation.controller import CostSeed, ProfilePoint, Seeded
from specdec.step_plan import StepPlan

NUM_EXACT_ROWS = 16
ROW_STRIDE = 64
# Enough to know the slope over tokens and the one over cached text; a saved profile knows more.
SEED_TOKENS = frozenset((1, 2, 4, 8, 16, 64))
SEED_KV = 1024
SEED_REPEATS = 2
PROMPT_TOKENS = 8
OUTPUT_TOKENS = 12


def warm_up(engine: Engine) -> None:
    """Run every reachable shape, then one request per verification rule."""
    config, controller = engine.scheduler.config, engine.controller
    warm_up_executor(engine.executor, config.max_num_batched_tokens, config.max_num_sequences)
    wants_steps = isinstance(controller, Seeded) and not controller.knows_steps
    steps = _measure(engine) if wants_steps else ()
    rehearsal = _rehearse(engine)
    engine.reset_counters()
    if isinstance(controller, Seeded):
        controller.seed(CostSeed(steps=steps, drafts=rehearsal.drafts))


def _measure(engine: Engine) -> tuple[ProfilePoint, ...]:
    """Before any request: it overwrites the KV pool, and with it what prefixes are cached."""
    config = engine.scheduler.config
    limits = StepLimits(
        config.max_num_batched_tokens,
        config.max_num_sequences,
        engine.config.max_num_speculative_tokens,
    )
    shapes = step_shapes(engine.executor, limits)
    few = [shape for shape in shapes if _is_seed(shape)]
    return measure_steps(engine.executor, few, limits, SEED_REPEATS)


def _is_seed(shape: StepShape) -> bool:
    if shape.num_kv_tokens == 0:
        return shape.num_tokens in SEED_TOKENS
    return shape == StepShape(1, SEED_KV)


def _rehearse(engine: Engine) -> Rehearsal:
    """Requests through the whole step, under a controller of their own."""
    rehearsal = Rehearsal(engine.config.max_wait_ms / 1000)
    controller, engine.controller = engine.controller, rehearsal
    try:
        for _ in engine.generate(_requests(engine)):
            pass
    finally:
        engine.controller = controller
    return rehearsal


def _requests(engine: Engine) -> list[GenerateRequest]:
    """One per verification rule; the first repeats itself, so that lookup finds something."""
    num_tokens = min(OUTPUT_TOKENS, engine.limits.max_model_len // 2)
    prompt = [1] * min(PROMPT_TOKENS, engine.limits.max_model_len - num_tokens)
    wishes = [
        SamplingParams(
            max_tokens=num_tokens,
            temperature=0,
            logprobs=1,
            allowed_token_ids=(1,),
            ignore_eos=True,
        ),
        SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=num_tokens, temperature=1.0, top_p=0.9, ignore_eos=True),
    ]
    return [GenerateRequest(f"warm-up-{i}", prompt, p) for i, p in enumerate(wishes)]


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
