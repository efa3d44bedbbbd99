"""Both sides of the comparison do the same work, and one of them really observes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.observability_cost import Sides, Silent, compare, tracing_to_a_collector
from specdec.engine.async_engine import AsyncEngine
from specdec.params import SamplingParams
from tests.unit.engine.engine_harness import make_engine, random_prompt

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
QUIET = SimpleNamespace(progress=lambda line, runs: None)


@pytest.fixture
def engine(tiny_llama):
    engine = AsyncEngine(make_engine(tiny_llama))
    yield engine
    engine.shutdown()


def test_one_side_counts_traces_and_scrapes_and_the_other_does_not(engine):
    counters = engine.engine.counters
    batches = [[random_prompt(5, seed=1), random_prompt(7, seed=2)]] * 2
    with tracing_to_a_collector(sample_ratio=1.0) as (tracing, collector):
        sides = Sides(engine, tracing)
        observed, bare = compare(sides, batches, PARAMS, QUIET)
        tracing.provider.force_flush()
        assert collector.num_posts > 0
    assert [run.num_tokens for run in observed] == [run.num_tokens for run in bare] == [12, 12]
    assert sides.num_scrapes >= 2
    assert counters.num_generation_tokens == 24  # of the observed side alone
    silent = engine.engine.counters if isinstance(engine.engine.counters, Silent) else Silent()
    assert silent.num_generation_tokens == 0
