"""Several models read several continuations of one prompt in step, a token at a time.

Every model executes the same step plan on a KV pool of the same shape, so that one block table
serves all. The prompt is computed once for all continuations. Nothing is sampled here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from specdec.config import CacheConfig
from specdec.model.executor import Executor
from specdec.step_plan import StepPlan

# One token each, so that continuations share every token of the prompt and no more.
BLOCK_SIZE = 1
MAX_PROMPT_CHUNK = 512


def pool_for(longest_prompt: int, num_texts: int, max_tokens: int) -> CacheConfig:
    """The KV pool that a model needs to read `num_texts` continuations of any prompt, with room
    for one more, so that an engine may run a request over it."""
    return CacheConfig(
        block_size=BLOCK_SIZE,
        num_blocks=longest_prompt + (num_texts + 1) * max_tokens,
        enable_prefix_caching=False,
    )


class Reader:
    """Texts 0, 1, ... that all begin with `prompt_ids` and hold at most `max_tokens` more.

    `executors`: the models, each over a pool of `pool_for`.
    """

    def __init__(
        self, executors: Sequence[Executor], prompt_ids: list[int], max_tokens: int
    ) -> None:
        assert prompt_ids
        self._executors = executors
        self._prompt_ids = prompt_ids
        self._max_tokens = max_tokens
        self._num_read: dict[int, int] = {}

    def read_prompt(self) -> list[Tensor]:
        """Each model's logits [1, V] after the prompt."""
        logits: list[Tensor] = []
        prompt = self._prompt_ids
        for start in range(0, len(prompt), MAX_PROMPT_CHUNK):
            chunk = prompt[start : start + MAX_PROMPT_CHUNK]
            plan = StepPlan()
            plan.add(chunk, start, list(range(start + len(chunk))), BLOCK_SIZE, 1)
            logits = self._execute(plan)
        return logits

    def read(self, next_ids: Mapping[int, int]) -> list[Tensor]:
        """Append one token to each text named; each model's logits [len(next_ids), V] after it."""
        plan = StepPlan()
        for text, token_id in next_ids.items():
            num_read = self._num_read.get(text, 0)
            self._num_read[text] = num_read + 1
            table = self._block_table(text, num_read + 1)
            plan.add([token_id], len(self._prompt_ids) + num_read, table, BLOCK_SIZE, 1)
        return self._execute(plan)

    def _block_table(self, text: int, num_tokens: int) -> list[int]:
        assert num_tokens <= self._max_tokens
        first = len(self._prompt_ids) + text * self._max_tokens
        return [*range(len(self._prompt_ids)), *range(first, first + num_tokens)]

    def _execute(self, plan: StepPlan) -> list[Tensor]:
        return [executor.execute(plan) for executor in self._executors]
