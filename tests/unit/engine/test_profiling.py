"""Measured times against an executor whose clock passes by a known formula."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specdec.engine.profiling import (
    StepLimits,
    StepShape,
    draft_shapes,
    measure_drafts,
    measure_steps,
    step_plan,
    step_shapes,
)
from specdec.errors import UnavailableError
from tests.unit.engine.draft_harness import Clock, PoolExecutor, make_engine

LIMITS = StepLimits(max_num_tokens=64, max_num_sequences=4, max_k=4)


def executor(**options):
    runner = PoolExecutor(num_blocks=200, block_size=4, model_max_len=512, **options)
    runner._slots = [1] * 800  # a pool has content before anything was computed, too
    return runner


def test_steps_take_what_the_clock_says():
    clock = Clock()
    runner = executor(clock=clock, pass_s=0.010, token_s=0.001)
    shapes = [StepShape(1, 0), StepShape(7, 40), StepShape(64, 0)]
    done = []
    points = measure_steps(runner, shapes, LIMITS, advance=lambda: done.append(1), clock=clock)
    assert [(p.num_tokens, p.num_kv_tokens) for p in points] == [(1, 0), (7, 40), (64, 0)]
    assert [p.seconds for p in points] == pytest.approx([0.011, 0.017, 0.074])
    assert len(done) == 3
    assert len(runner.plans) == 3 * (1 + 3)  # each shape once to prepare it, thrice by the clock


def test_the_least_of_the_repeats_counts_and_slow_shapes_are_not_repeated():
    clock = Clock()
    runner = executor(clock=clock, pass_s=2.0)
    (point,) = measure_steps(runner, [StepShape(1, 0)], LIMITS, clock=clock)
    assert point.seconds == pytest.approx(2.0)
    assert len(runner.plans) == 2
    noisy = executor(clock=clock, pass_s=0.010)
    plain, delays = noisy.execute, iter([9.0, 0.3, 0.0, 0.2])

    def execute(plan):
        clock.advance(next(delays))
        return plain(plan)

    noisy.execute = execute
    (point,) = measure_steps(noisy, [StepShape(1, 0)], LIMITS, clock=clock)
    assert point.seconds == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("num_tokens", "kv", "lens"),
    [
        (1, 0, [1]),
        (3, 30, [3]),
        (5, 0, [2, 3]),
        (12, 10, [3, 3, 3, 3]),
        (20, 0, [5, 5, 5, 5]),
        (21, 8, [3, 3, 3, 12]),  # more than four sequences of five: three and a prompt's chunk
    ],
)
def test_a_shape_becomes_sequences(num_tokens, kv, lens):
    plan = step_plan(StepShape(num_tokens, kv), executor(), LIMITS)
    assert plan.query_lens == lens
    assert plan.num_tokens == num_tokens
    assert sum(plan.context_lens) == num_tokens + kv
    assert len(set(plan.slot_mapping)) == num_tokens
    blocks = [block for table in plan.block_tables for block in table]
    assert len(blocks) == len(set(blocks))
    rows = num_tokens if max(lens) <= 5 else num_tokens - max(lens) + 1
    assert len(plan.logit_rows) == rows


def test_shapes_reach_the_limits_of_step_pool_and_context():
    shapes = step_shapes(executor(), LIMITS)
    tokens = [s.num_tokens for s in shapes if s.num_kv_tokens == 0]
    assert tokens[:18] == [*range(1, 17), 18, 20]
    assert tokens[-1] == 64
    assert all(later <= 1.125 * earlier for earlier, later in pairwise(tokens[8:]))
    # 800 slots; a sequence may have 512 tokens, so one alone cannot hold 1024 but two of 256 can.
    assert {s.num_kv_tokens for s in shapes} == {0, 256}
    assert not [s for s in step_shapes(PoolExecutor(num_blocks=4), LIMITS) if s.num_tokens > 16]


def test_a_round_is_as_many_passes_as_it_is_deep():
    clock = Clock()
    engine = make_engine(
        executor(clock=clock, pass_s=0.010, token_s=0.001), clock=clock, max_num_sequences=4
    )
    shapes = draft_shapes(engine, 4)
    assert {batch for batch, _ in shapes} == {1, 2, 4}
    assert {depth for _, depth in shapes} == {1, 2, 3, 4, 6, 8}
    points = measure_drafts(engine, shapes, clock=clock)
    assert [(p.num_sequences, p.depth) for p in points] == shapes
    for point in points:
        # Each pass runs one token of each sequence, the first also one that was drafted in vain.
        expected = point.depth * (0.010 + 0.001 * point.num_sequences)
        assert expected - 1e-9 <= point.seconds <= expected + 0.001 * point.num_sequences + 1e-9
    assert engine.memory.blocks.num_used_blocks == 0
    assert not engine.has_work


def test_a_draft_that_declines_is_not_taken_for_a_fast_one():
    engine = make_engine(executor())
    engine.drain()
    with pytest.raises(UnavailableError, match="draining"):
        measure_drafts(engine, [(1, 2)])
