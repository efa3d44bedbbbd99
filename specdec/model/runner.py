"""The model runner: turns a step plan into tensors and runs one rank's model over it.

The same on every tensor-parallel rank: it sees its own share of the heads, and whatever
collectives the model needs are inside the model. It samples nothing and decides nothing.
"""

from __future__ import annotations

import torch

from specdec.config import CacheConfig, ModelConfig
from specdec.step_plan import StepPlan


class ModelRunner:
    """One rank's model, its attention backend and its KV pool.

    Attributes: vocab_size, model_max_len, block_size, num_blocks, device, as in Executor;
    `bytes_per_block` of this rank's pool, so that ranks can agree on the smallest num_blocks.
    """

    vocab_size: int
    model_max_len: int
    block_size: int
    num_blocks: int
    bytes_per_block: int
    device: torch.device

    @classmethod
    def build(
        cls,
        model: ModelConfig,
        cache: CacheConfig,
        *,
        max_num_tokens: int,
        max_num_logit_rows: int,
        tp_size: int = 1,
        rank: int = 0,
    ) -> ModelRunner:
        """Load, attach paged attention, size and allocate the pool.

        With `tp_size` > 1 torch.distributed is already initialised and LOCAL_RANK set; the model
        is loaded with tp_plan="auto" and every rank must call this together. The smallest
        num_blocks over the ranks is used by all.
        """
        raise NotImplementedError

    def run(self, plan: StepPlan) -> torch.Tensor:
        """Logits [len(plan.logit_rows), vocab_size]; complete on every rank, used on rank 0.

        An empty plan (no tokens) is a no-op that returns an empty tensor and runs no collective.
        """
        raise NotImplementedError
