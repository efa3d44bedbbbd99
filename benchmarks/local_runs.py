"""One prompt through an in-process engine, or through transformers' `generate`, timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import AutoModelForCausalLM

from benchmarks.measure import Run, Stopwatch
from specdec.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from specdec.engine import Engine
from specdec.engine.draft_warmup import warm_up_draft
from specdec.engine.local_draft import LocalDraftProposer
from specdec.engine.request import GenerateRequest
from specdec.engine.warmup import warm_up
from specdec.params import SamplingParams, SpeculationParams
from specdec.sequence import RequestMetrics

OFF = SpeculationParams(mode="off")
AUTO = SpeculationParams()
MAX_K = 6
NUM_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A timed run, what it emitted and what speculation did in it."""

    run: Run
    token_ids: list[int]
    metrics: RequestMetrics | None


def build(
    model: str,
    quantization: str = "none",
    drafters: tuple[str, ...] = (),
    threads: int | None = None,
    max_num_sequences: int = 8,
) -> Engine:
    """A warm engine. No prefix cache: a prompt that another side has just run must not be free."""
    numbers = {"dtype": "float32", "device": "cpu", "num_threads": threads}
    cache = CacheConfig(num_blocks=NUM_BLOCKS, enable_prefix_caching=False)
    scheduler = SchedulerConfig(max_num_sequences=max_num_sequences, max_model_len=4096)
    speculation = SpeculationConfig(
        drafters=drafters, max_num_speculative_tokens=MAX_K if drafters else 0
    )
    target = ModelConfig(model=model, quantization=quantization, **numbers)
    draft = None
    if "draft" in drafters:
        draft = DraftConfig(
            draft=ModelConfig(model=model, quantization="int8", **numbers),
            cache=cache,
            scheduler=scheduler,
            max_num_speculative_tokens=MAX_K,
        )
    engine = Engine.from_config(
        EngineConfig(target=target, cache=cache, scheduler=scheduler, speculation=speculation),
        draft,
    )
    if "draft" in drafters:
        warm_up_draft(cast(LocalDraftProposer, engine.drafters["draft"]).engine)
    warm_up(engine)
    return engine


def greedy(max_tokens: int, speculation: SpeculationParams = OFF) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, speculation=speculation)


def run_engine(engine: Engine, token_ids: list[int], params: SamplingParams) -> EngineRun:
    """One request, alone in the engine."""
    emitted: list[int] = []
    first_s, metrics = 0.0, None
    watch = Stopwatch()
    for output in engine.generate([GenerateRequest("bench", token_ids, params)]):
        if not emitted:
            first_s = watch.seconds
        emitted += output.token_ids
        metrics = output.metrics or metrics
    return EngineRun(watch.run(len(emitted), first_s), emitted, metrics)


def run_batch(engine: Engine, prompts: Sequence[list[int]], params: SamplingParams) -> Run:
    """All prompts at once, as one batch; every token of all counts."""
    requests = [GenerateRequest(f"bench-{i}", ids, params) for i, ids in enumerate(prompts)]
    watch = Stopwatch()
    num_tokens = sum(len(output.token_ids) for output in engine.generate(requests))
    return watch.run(num_tokens)


def transformers_runner(model: str, max_tokens: int) -> Callable[[list[int]], EngineRun]:
    """Greedy `generate` on the same weights in float32, with transformers' own defaults."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    reference.generation_config.pad_token_id = reference.generation_config.eos_token_id

    @torch.inference_mode()
    def run(token_ids: list[int]) -> EngineRun:
        prompt = torch.tensor([token_ids])
        watch = Stopwatch()
        output = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
        emitted: list[int] = output[0, len(token_ids) :].tolist()
        return EngineRun(watch.run(len(emitted)), emitted, None)

    run([1, 2, 3, 4])
    return run
