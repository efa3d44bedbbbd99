"""A caller who takes no outputs: its sequence stops, others go on, and its text stays the same."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from specdec.engine import AsyncEngine
from specdec.engine.async_engine import MAX_OUTPUTS_BEHIND
from specdec.errors import DeadlineError
from specdec.params import SpeculationParams
from tests.unit.engine.engine_harness import (
    OFF,
    fixed,
    generate,
    make_engine,
    random_prompt,
    request,
    token_ids,
)

PROMPT = random_prompt(9, seed=2)
NUM_TOKENS = 300
GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": NUM_TOKENS}
COUPLED = {**GREEDY, "temperature": 0.9, "seed": 7}
WAIT_S = 60.0


async def until(condition):
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


async def collect(async_engine, wanted):
    return [output async for output in async_engine.generate(wanted)]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("speculation", [OFF, fixed(2, "ngram")], ids=["off", "ngram"])
async def test_a_stream_that_is_not_read_stops_and_goes_on_with_the_same_text(
    tiny_llama, mode, speculation
):
    expected = generate(make_engine(tiny_llama), PROMPT, speculation=OFF, **mode)
    engine = make_engine(tiny_llama)
    running = AsyncEngine(engine)
    try:
        wanted = request(PROMPT, speculation=speculation, **mode)
        async with aclosing(running.generate(wanted)) as outputs:
            taken = [await anext(outputs)]
            await until(lambda: engine.scheduler.paused)
            (sequence,) = engine.scheduler.paused
            known = sequence.num_output_tokens
            # As many steps as it may be behind, of at most 1 + k tokens, and few on their way.
            assert known <= 3 * (MAX_OUTPUTS_BEHIND + 16)
            other = await collect(running, request(PROMPT, "other", speculation=OFF, **GREEDY))
            assert len(token_ids(other)) == NUM_TOKENS
            assert sequence.num_output_tokens == known
            assert not engine.scheduler.has_work
            taken += [output async for output in outputs]
        assert token_ids(taken) == expected
        assert sequence.num_preemptions == 0
        await until(lambda: not engine.has_work)
        assert engine.block_manager.num_used_blocks == 0
    finally:
        running.shutdown()


async def test_a_paused_sequence_still_has_its_deadline(tiny_llama):
    engine = make_engine(tiny_llama)
    running = AsyncEngine(engine)
    try:
        wanted = request(PROMPT, speculation=OFF, **GREEDY)
        wanted.timeout_s = 600.0
        async with aclosing(running.generate(wanted)) as outputs:
            await anext(outputs)
            await until(lambda: engine.scheduler.paused)
            (sequence,) = engine.scheduler.paused
            sequence.deadline_s = time.monotonic()
            await until(lambda: not engine.has_work)
            last = [output async for output in outputs][-1]
        assert isinstance(last.error, DeadlineError)
        assert engine.block_manager.num_used_blocks == 0
    finally:
        running.shutdown()


async def test_leaving_a_paused_stream_frees_its_blocks(tiny_llama):
    engine = make_engine(tiny_llama)
    running = AsyncEngine(engine)
    try:
        wanted = request(PROMPT, speculation=OFF, **GREEDY)
        async with aclosing(running.generate(wanted)) as outputs:
            await anext(outputs)
            await until(lambda: engine.scheduler.paused)
        await until(lambda: not engine.has_work)
        assert engine.block_manager.num_used_blocks == 0
        assert engine.counters.finished == {"abort": 1}
    finally:
        running.shutdown()


@pytest.mark.parametrize("verification", ["rejection", "block", "auto"])
def test_a_pause_changes_no_round_and_no_draw(tiny_llama, verification):
    """Rejection and block draw by round: a step without its draft would show."""
    params = {"temperature": 0.9, "seed": 3, "ignore_eos": True, "max_tokens": 40}
    speculation = SpeculationParams(mode="fixed", k=3, drafter="ngram", verification=verification)

    def run(pauses):
        engine = make_engine(tiny_llama)
        sequence = engine.add_request(request(PROMPT, speculation=speculation, **params))
        sequence.seed = 5  # else fresh for each request
        while engine.has_work:
            engine.step()
            if pauses and sequence.num_output_tokens % 2:
                engine.pause(sequence.seq_id)
                assert engine.step() == []
                engine.resume(sequence.seq_id)
        return sequence.output_token_ids, sequence.round

    assert run(pauses=True) == run(pauses=False)
