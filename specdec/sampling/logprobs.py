"""Log-probabilities of the target's own distribution, before bias, penalties and filters.

The same row gives the same numbers whether its token was accepted, recovered or a bonus: they
come from the raw logits of the position, never from a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.sequence import TokenLogprobs


def token_logprobs(raw_logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
    """One TokenLogprobs for each row of `raw_logits` [r, V] and its token.

    Computed in float64. Rank counts the tokens that are strictly likelier, plus one.
    """
    assert len(token_ids) == len(raw_logits)
    logprobs = torch.log_softmax(raw_logits.double(), dim=-1)
    index = torch.tensor(token_ids, dtype=torch.int64, device=logprobs.device)[:, None]
    chosen = logprobs.gather(1, index)
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    top_values, top_ids = logprobs.topk(min(top_n, logprobs.shape[-1]), dim=-1)
    return [
        TokenLogprobs(token_id, logprob, rank, list(zip(ids, values, strict=True)))
        for token_id, logprob, rank, ids, values in zip(
            token_ids,
            chosen.flatten().tolist(),
            ranks.tolist(),
            top_ids.tolist(),
            top_values.tolist(),
            strict=True,
        )
    ]
