"""Executors: what the engine calls to run a step plan, on one rank or on several.

An executor owns the model and its KV pool and knows nothing of requests, sampling or drafting.
`LocalExecutor` runs one rank in this process; `parallel.py` drives several.
"""

from __future__ import annotations

from typing import Protocol

import torch

from specdec.config import CacheConfig, ModelConfig, SchedulerConfig
from specdec.model.runner import ModelRunner
from specdec.step_plan import StepPlan


class Executor(Protocol):
    """Runs step plans.

    vocab_size: width of the logits (a padded model vocabulary counts in full).
    model_max_len: the longest context that the model itself allows.
    block_size, num_blocks: geometry of the KV pool that block tables refer to.
    device: where the logits of rank 0 are.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def model_max_len(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits [len(plan.logit_rows), vocab_size] in the model's dtype, never modified later.

        Raises UnavailableError where a rank is lost.
        """
        ...

    def shutdown(self) -> None:
        """Free the model, the pool and every other rank. Idempotent."""
        ...


class LocalExecutor:
    """One rank, in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner: ModelRunner | None = runner
        self.vocab_size = runner.vocab_size
        self.model_max_len = runner.model_max_len
        self.block_size = runner.block_size
        self.num_blocks = runner.num_blocks
        self.device = runner.device

    def execute(self, plan: StepPlan) -> torch.Tensor:
        assert self._runner is not None, "the executor was shut down"
        return self._runner.run(plan)

    def shutdown(self) -> None:
        self._runner = None


def build_executor(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    max_num_speculative_tokens: int,
) -> Executor:
    """Load the model, size its KV pool, and return the executor for its tensor-parallel size.

    `scheduler` and `max_num_speculative_tokens` bound the largest step, which a CUDA device is
    profiled with. Raises ConfigError for a model that cannot be served, naming why.
    """
    if model.tensor_parallel_size > 1:
        from specdec.model.parallel import build_parallel_executor

        return build_parallel_executor(model, cache, scheduler, max_num_speculative_tokens)
    return LocalExecutor(
        ModelRunner.build(
            model,
            cache,
            max_num_tokens=scheduler.max_num_batched_tokens,
            max_num_logit_rows=scheduler.max_logit_rows(max_num_speculative_tokens),
        )
    )
