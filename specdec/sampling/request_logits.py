"""What one request does to its logits, in the form that a step needs: bias, penalties, masks.

Index tensors are built once, when the request has its first logits; what grows with the text is
kept up. A rejected draft token leaves no trace, since only committed text is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.bad_words import BadWords
from specdec.sampling.penalties import Penalties


@dataclass(frozen=True, slots=True)
class _Tables:
    """Of one vocabulary and device: indices of the last dimension, and values for them."""

    vocab_size: int
    bias_index: Tensor
    bias: Tensor
    not_allowed: Tensor | None
    bad_words: BadWords | None
    bad_index: Tensor
    stop_index: Tensor
    penalties: Penalties | None


class RequestLogits:
    """`token_ids` is the committed text itself, prompt included: the very list that grows.

    `stop_token_ids` (EOS and the request's own) are masked while the output is shorter than
    `min_tokens`.
    """

    def __init__(
        self,
        params: SamplingParams,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        stop_token_ids: Collection[int] = frozenset(),
    ) -> None:
        self.params = params
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._stop_token_ids = stop_token_ids
        self._has_penalties = bool(
            params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        )
        self._always_adjusts = bool(
            self._has_penalties
            or params.logit_bias
            or params.bad_words_token_ids
            or params.allowed_token_ids is not None
        )
        self._tables: _Tables | None = None

    @property
    def needs_adjustment(self) -> bool:
        """Whether any row from here on differs from the model's own logits."""
        return self._always_adjusts or self._num_unfinished(0) > 0

    def _num_unfinished(self, num_drafted: int) -> int:
        """Rows behind so many draft tokens that must not stop yet."""
        if not self._stop_token_ids:
            return 0
        num_output = len(self._token_ids) - self._num_prompt_tokens
        return max(0, self.params.min_tokens - num_output - num_drafted)

    def adjust(self, logits: Tensor, draft_token_ids: Sequence[int]) -> Tensor:
        """Rows [r, V] as the request wants them, from the model's: the last r of those behind the
        first 0, 1, ... draft tokens. At least float32; `logits` stay as they are.

        The order is vLLM's: bias, penalties, masks. A mask that would leave a row without any
        token is not applied to it; allowed_token_ids goes before bad_words, bad_words before
        min_tokens. Token ids beyond V are ignored: a draft's vocabulary may be padded less.
        """
        # Half precision could not hold `logit - penalty`.
        wide = logits.float() if logits.dtype.itemsize < 4 else logits
        tables = self._tables_for(wide)
        shifted = self._shift(wide, tables, draft_token_ids)
        masks = self._masks(tables, draft_token_ids, len(wide))
        if not masks:
            return shifted
        masked = shifted.clone() if shifted is wide else shifted
        for mask in masks:
            mask(masked)
        if bool((masked.amax(dim=1) == -math.inf).any()):
            return _spare_emptied_rows(self._shift(wide, tables, draft_token_ids), masks)
        return masked

    def _shift(self, logits: Tensor, tables: _Tables, draft_token_ids: Sequence[int]) -> Tensor:
        """With bias and penalties; `logits` themselves where nothing changes them."""
        if not len(tables.bias_index) and tables.penalties is None:
            return logits
        shifted = logits.clone()
        if len(tables.bias_index):
            shifted.index_add_(1, tables.bias_index, tables.bias.expand(len(logits), -1))
        if tables.penalties is not None:
            tables.penalties.apply(shifted, self._token_ids, draft_token_ids)
        return shifted

    def _masks(
        self, tables: _Tables, draft_token_ids: Sequence[int], num_rows: int
    ) -> list[Callable[[Tensor], object]]:
        """What excludes tokens from `num_rows` rows, in place, in the order of precedence."""
        first_row = 1 + len(draft_token_ids) - num_rows
        masks: list[Callable[[Tensor], object]] = []
        if (not_allowed := tables.not_allowed) is not None:
            masks.append(lambda rows: rows.add_(not_allowed))
        if (bad_words := tables.bad_words) is not None:
            endings = list(bad_words.endings(self._token_ids, draft_token_ids))[first_row:]
            where = _places(endings, tables.bad_index.device)
            masks.append(lambda rows: _exclude(rows, tables.bad_index, where))
        num_unfinished = self._num_unfinished(first_row)
        if num_unfinished > 0:
            masks.append(lambda rows: _exclude(rows[:num_unfinished], tables.stop_index))
        return masks

    def _tables_for(self, logits: Tensor) -> _Tables:
        vocab_size = logits.shape[-1]
        if self._tables is None or self._tables.vocab_size != vocab_size:
            self._tables = self._build(logits, vocab_size)
        return self._tables

    def _build(self, logits: Tensor, vocab_size: int) -> _Tables:
        params = self.params
        bias = {i: value for i, value in params.logit_bias.items() if i < vocab_size}
        words = params.bad_words_token_ids
        bad_words = BadWords(words, vocab_size) if words else None
        prompt = self._token_ids[: self._num_prompt_tokens]
        return _Tables(
            vocab_size=vocab_size,
            bias_index=_index(list(bias), logits),
            bias=logits.new_tensor(list(bias.values())),
            not_allowed=_not_allowed(params.allowed_token_ids, logits),
            bad_words=bad_words,
            bad_index=_index(bad_words.single_token_ids if bad_words else (), logits),
            stop_index=_index(self._stop_token_ids if params.min_tokens else (), logits),
            penalties=Penalties(params, prompt, vocab_size) if self._has_penalties else None,
        )


def _index(token_ids: Collection[int], logits: Tensor) -> Tensor:
    """Those of `token_ids` that have a logit, as an index of the last dimension."""
    ids = np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))
    return torch.from_numpy(ids[ids < logits.shape[-1]]).to(logits.device)


def _not_allowed(token_ids: Sequence[int] | None, logits: Tensor) -> Tensor | None:
    """What to add to a row: -inf for all but these; None where none of them has a logit."""
    if token_ids is None or not len(index := _index(token_ids, logits)):
        return None
    row = logits.new_full((logits.shape[-1],), -math.inf)
    return row.index_fill_(0, index, 0.0)


def _places(endings: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of each entry, from the columns of each row."""
    rows = np.repeat(np.arange(len(endings)), [len(columns) for columns in endings])
    columns = np.concatenate(endings)
    return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)


def _exclude(rows: Tensor, columns: Tensor, where: tuple[Tensor, Tensor] | None = None) -> None:
    """The tokens `columns` [n] from every row, and single entries, in place."""
    rows.index_fill_(1, columns, -math.inf)
    if where is not None and len(where[0]):
        rows[where] = -math.inf


def _spare_emptied_rows(rows: Tensor, masks: Sequence[Callable[[Tensor], object]]) -> Tensor:
    """Each mask on those rows that keep a token behind it: the model itself, or another mask, may
    exclude all that one leaves."""
    for mask in masks:
        masked = rows.clone()
        mask(masked)
        emptied = masked.amax(dim=1, keepdim=True) == -math.inf
        rows = torch.where(emptied, rows, masked)
    return rows
