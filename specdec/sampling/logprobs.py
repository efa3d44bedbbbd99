"""Log-probabilities of the target's own distribution, before bias, penalties and filters.

The same row gives the same numbers whether its token was accepted, recovered or a bonus: they
come from the raw logits of the position, never from a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.sequence import TokenLogprobs

# Rows turned into float64 at a time: a prompt chunk may bring many. One alone fits a processor's
# cache.
ROWS_AT_ONCE = 16
ROWS_AT_ONCE_ON_CPU = 1


def token_logprobs(raw_logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
    """One TokenLogprobs for each row of `raw_logits` [r, V] and its token.

    Computed in float64. Rank counts the tokens that are strictly likelier, plus one.
    """
    assert len(token_ids) == len(raw_logits)
    results = []
    step = ROWS_AT_ONCE_ON_CPU if raw_logits.device.type == "cpu" else ROWS_AT_ONCE
    for start in range(0, len(token_ids), step):
        rows = slice(start, start + step)
        results += _token_logprobs(raw_logits[rows], token_ids[rows], top_n)
    return results


def _token_logprobs(logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
    log_total = torch.logsumexp(logits.double(), dim=-1, keepdim=True)
    index = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    chosen = logits.gather(1, index)
    num_larger = _num_larger(logits, chosen)
    top_logits, top_ids = logits.topk(min(top_n, logits.shape[-1]), dim=-1)
    return [
        TokenLogprobs(token_id, logprob, larger + 1, list(zip(ids, logprobs, strict=True)))
        for token_id, logprob, larger, ids, logprobs in zip(
            token_ids,
            (chosen.double() - log_total).flatten().tolist(),
            num_larger,
            top_ids.tolist(),
            (top_logits.double() - log_total).tolist(),
            strict=True,
        )
    ]


def _num_larger(logits: Tensor, chosen: Tensor) -> list[int]:
    """Of each row [r, V], how many entries are larger than `chosen` [r, 1]. Counting is several
    times faster in numpy on CPU."""
    larger = logits > chosen
    if logits.device.type == "cpu":
        return [int(np.count_nonzero(row)) for row in larger.numpy()]
    counted: list[int] = larger.sum(dim=-1).tolist()
    return counted
