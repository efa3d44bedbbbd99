"""Repetition, presence and frequency penalties, over counts that grow with the text.

A step costs what the distinct tokens of the text cost, not the text's length: tokens are counted
once, as they are committed, and draft tokens are never counted in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.params import SamplingParams


class Penalties:
    """Repetition penalty on prompt and output (CTRL, 1909.05858), presence and frequency penalties
    on the output alone (OpenAI). Ids from `vocab_size` on have no logit and are passed over."""

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        self._params = params
        self._vocab_size = vocab_size
        prompt = np.asarray(prompt_token_ids, dtype=np.int64)
        self._ids: NDArray[np.int64] = np.unique(prompt[prompt < vocab_size])
        self._num_ids = len(self._ids)
        self._counts = np.zeros(self._num_ids, dtype=np.int64)
        self._place_of = {token_id: place for place, token_id in enumerate(self._ids.tolist())}
        self._num_counted = len(prompt)

    def apply(
        self, logits: Tensor, token_ids: Sequence[int], draft_token_ids: Sequence[int]
    ) -> None:
        """Penalise rows [r, V] in place: the last r of those behind the first 0, 1, ... draft
        tokens that follow `token_ids`, a text that only grows from call to call.

        One formula for each entry, never an increment per draft token: the result must not depend
        on whether a token was committed or is still a draft, not even in the last bit.
        """
        self._count(token_ids)
        drafted = sorted({token_id for token_id in draft_token_ids if token_id < self._vocab_size})
        columns = torch.tensor(drafted, dtype=torch.int64, device=logits.device)
        before = logits.index_select(1, columns)
        index = torch.from_numpy(self._ids[: self._num_ids]).to(logits.device)
        counts = _like(self._counts[: self._num_ids], logits)
        values = self._penalised(logits.index_select(1, index), counts, None)
        # Faster than index_copy_ by half, which goes through the columns one by one.
        logits.scatter_(1, index.expand(len(logits), -1), values)
        if drafted:
            counted, seen = self._with_drafts(len(logits), drafted, draft_token_ids)
            is_seen = _like(seen, logits).bool()
            logits.index_copy_(1, columns, self._penalised(before, _like(counted, logits), is_seen))

    def _count(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[self._num_counted :]:
            if token_id < self._vocab_size:
                place = self._place(token_id)
                self._counts[place] += 1
        self._num_counted = len(token_ids)

    def _place(self, token_id: int) -> int:
        place = self._place_of.setdefault(token_id, self._num_ids)
        if place == self._num_ids:
            if place == len(self._ids):
                room = max(64, place)
                self._ids = np.concatenate((self._ids, np.zeros(room, dtype=np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(room, dtype=np.int64)))
            self._ids[place] = token_id
            self._num_ids += 1
        return place

    def _with_drafts(
        self, num_rows: int, drafted: Sequence[int], draft_token_ids: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of the distinct `drafted` ids, for each row: counts in the output [r, n], and whether
        they are in the text at all [r, n]."""
        counts = np.zeros((num_rows, len(drafted)), dtype=np.int64)
        seen = np.zeros((num_rows, len(drafted)), dtype=np.bool_)
        first = 1 + len(draft_token_ids) - num_rows
        for column, token_id in enumerate(drafted):
            place = self._place_of.get(token_id)
            before = 0 if place is None else int(self._counts[place])
            added = np.cumsum([0, *(draft == token_id for draft in draft_token_ids)])[first:]
            counts[:, column] = before + added
            seen[:, column] = (added > 0) | (place is not None)
        return counts, seen

    def _penalised(self, values: Tensor, counts: Tensor, is_seen: Tensor | None) -> Tensor:
        """`values` [r, n] by `counts` [n] or [r, n]; `is_seen` None: all are in the text."""
        params = self._params
        if params.repetition_penalty != 1:
            # What is above 0 is divided, what is below multiplied: the smaller of both, or for a
            # penalty below 1 the larger.
            nearest = torch.minimum if params.repetition_penalty > 1 else torch.maximum
            penalty = params.repetition_penalty
            repeated = nearest(values / penalty, values * penalty)
            values = repeated if is_seen is None else torch.where(is_seen, repeated, values)
        if params.frequency_penalty or params.presence_penalty:
            offsets = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
            values = values - offsets
        return values


def _like(array: NDArray[np.generic], logits: Tensor) -> Tensor:
    return torch.from_numpy(array).to(logits.device, logits.dtype)
