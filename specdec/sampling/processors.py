"""Logits processing per position: what a request's parameters make of the target's logits.

`adjust_logits` adds bias and penalties and masks tokens, each row with the history that its
position would have if the draft tokens before it were accepted. It keeps no state between steps,
so a rejected draft token leaves no trace. `filtered_logits` and `probs` then apply temperature,
top-k, top-p and min-p, in that order. Nothing is sampled here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.params import SamplingParams

# How many candidates top-p sorts, then the whole row: most distributions need few.
TOP_P_CANDIDATES = (512, 4096)


@dataclass(slots=True)
class SequenceRows:
    """The rows of one sequence: 1 + len(draft_token_ids), one for each position to be decided.

    Row j follows prompt + output + the first j draft tokens. `stop_token_ids` (EOS and the
    request's own) are masked while the output is shorter than `min_tokens`.
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    draft_token_ids: Sequence[int] = ()
    stop_token_ids: Collection[int] = field(default_factory=frozenset)

    @property
    def num_rows(self) -> int:
        return 1 + len(self.draft_token_ids)

    @property
    def needs_adjustment(self) -> bool:
        """Whether any row differs from the model's own logits."""
        params = self.params
        return bool(
            params.logit_bias
            or params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
            or params.bad_words_token_ids
            or params.allowed_token_ids is not None
            or (self.stop_token_ids and len(self.output_token_ids) < params.min_tokens)
        )


def adjust_logits(logits: Tensor, groups: Sequence[SequenceRows]) -> Tensor:
    """`logits` [R, V] with bias, penalties and masks; R = sum of the groups' rows.

    The very same tensor when no group needs anything; else a copy (float32 for half precision).
    The order is vLLM's: bias, penalties, masks. A mask that would leave a row without any token
    is not applied to it; allowed_token_ids goes before bad_words, bad_words before min_tokens.
    Token ids beyond V are ignored: a draft's vocabulary may be padded less than the target's.
    """
    assert sum(rows.num_rows for rows in groups) == len(logits)
    if not any(rows.needs_adjustment for rows in groups):
        return logits
    # Half precision could not hold `logit - penalty`; a wider copy costs the same pass.
    adjusted = logits.float() if logits.dtype.itemsize < 4 else logits.clone()
    first_row = 0
    for rows in groups:
        if rows.needs_adjustment:
            _adjust_rows(adjusted[first_row : first_row + rows.num_rows], rows)
        first_row += rows.num_rows
    return adjusted


def _adjust_rows(logits: Tensor, rows: SequenceRows) -> None:
    params = rows.params
    if params.logit_bias:
        _add_bias(logits, params.logit_bias)
    if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
        _penalise(logits, rows)
    if params.allowed_token_ids is not None:
        _mask_all_but(logits, params.allowed_token_ids)
    if params.bad_words_token_ids:
        _mask_bad_words(logits, rows)
    num_masked = min(rows.num_rows, params.min_tokens - len(rows.output_token_ids))
    if num_masked > 0:
        _mask(logits[:num_masked], rows.stop_token_ids)


def _token_index(logits: Tensor, token_ids: Collection[int]) -> Tensor:
    """Those of `token_ids` that have a logit, as an index of the last dimension."""
    known = [token_id for token_id in token_ids if token_id < logits.shape[-1]]
    return torch.tensor(known, dtype=torch.int64, device=logits.device)


def _add_bias(logits: Tensor, logit_bias: Mapping[int, float]) -> None:
    index = _token_index(logits, logit_bias)
    logits[:, index] += logits.new_tensor([logit_bias[int(token_id)] for token_id in index])


def _penalise(logits: Tensor, rows: SequenceRows) -> None:
    """Repetition penalty on prompt and output (CTRL, 1909.05858), presence and frequency
    penalties on the output alone (OpenAI). Each row counts the draft tokens before it.

    One formula per row, never an increment per draft token: the result must not depend on
    whether a token was committed or is still a draft, not even in the last bit.
    """
    params = rows.params
    ids, prompt_counts, output_counts = _count_tokens(rows, logits.shape[-1])
    index = torch.from_numpy(ids).to(logits.device)
    values = logits[:, index]
    if params.repetition_penalty != 1:
        seen = _like(prompt_counts + output_counts > 0, logits).bool()
        penalised = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
        values = torch.where(seen, penalised, values)
    counts = _like(output_counts, logits)
    values = values - params.frequency_penalty * counts
    values = values - params.presence_penalty * (counts > 0)
    logits[:, index] = values


def _like(array: NDArray[np.generic], logits: Tensor) -> Tensor:
    return torch.from_numpy(array).to(logits.device, logits.dtype)


def _count_tokens(
    rows: SequenceRows, vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct ids [n] below `vocab_size`, their counts in the prompt [n] and, for each row, in
    the output [rows, n]."""
    parts = [
        np.asarray(part, dtype=np.int64)
        for part in (rows.prompt_token_ids, rows.output_token_ids, rows.draft_token_ids)
    ]
    ids, inverse = np.unique(np.concatenate(parts), return_inverse=True)
    prompt, output, drafts = np.split(inverse, np.cumsum([len(part) for part in parts])[:-1])
    increments = np.zeros((rows.num_rows, len(ids)), dtype=np.int64)
    increments[0] = np.bincount(output, minlength=len(ids))
    increments[np.arange(1, rows.num_rows), drafts] = 1
    known = int(np.searchsorted(ids, vocab_size))
    prompt_counts = np.bincount(prompt, minlength=len(ids))
    return ids[:known], prompt_counts[:known], np.cumsum(increments, axis=0)[:, :known]


def _mask(logits: Tensor, token_ids: Collection[int]) -> None:
    """Exclude tokens from each row that keeps at least one other token."""
    index = _token_index(logits, token_ids)
    saved = logits[:, index]
    logits[:, index] = -math.inf
    emptied = (logits == -math.inf).all(dim=1, keepdim=True)
    logits[:, index] = torch.where(emptied, saved, logits[:, index])


def _mask_all_but(logits: Tensor, token_ids: Sequence[int]) -> None:
    index = _token_index(logits, token_ids)
    if len(index) == 0:
        return
    allowed = logits[:, index]
    logits.fill_(-math.inf)
    logits[:, index] = allowed


def _mask_bad_words(logits: Tensor, rows: SequenceRows) -> None:
    """Exclude the last token of each bad word where the text before ends with its beginning."""
    longest = max(len(word) for word in rows.params.bad_words_token_ids)
    committed = [*rows.prompt_token_ids[-longest:], *rows.output_token_ids[-longest:]]
    for row in range(rows.num_rows):
        history = [*committed, *rows.draft_token_ids[:row]]
        banned = [
            word[-1]
            for word in rows.params.bad_words_token_ids
            if len(word) == 1 or tuple(history[1 - len(word) :]) == word[:-1]
        ]
        if banned:
            _mask(logits[row : row + 1], banned)


def makes_law(logits: Tensor) -> Tensor:
    """Whether a token can be chosen by each row of `logits` [r, V]: bool [r].

    The largest entry must be finite. -inf excludes a token, be it by the model or by the request;
    NaN or +inf anywhere, or -inf everywhere, leave no law.
    """
    return logits.amax(dim=-1).isfinite()


def greedy_tokens(logits: Tensor) -> list[int | None]:
    """The argmax of each row of `logits` [r, V], None where it makes no law; in one transfer."""
    chosen = torch.where(makes_law(logits), logits.argmax(dim=-1), -1)
    return [token_id if token_id >= 0 else None for token_id in chosen.tolist()]


def filtered_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """(logits - their maximum) / temperature, float64 [r, V], -inf outside top-k, top-p, min-p,
    of rows that make a law.

    Each filter keeps the tokens that tie with the last one kept, so that the result depends on
    the values of a row alone, never on the order of equals. Temperature must be above 0.
    """
    assert params.temperature > 0
    wide = logits.double()
    # Without the maximum, a tiny temperature cannot overflow to inf - inf.
    scaled = (wide - wide.amax(dim=-1, keepdim=True)) / params.temperature
    if 0 < params.top_k < scaled.shape[-1]:
        smallest = scaled.topk(params.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < smallest, -math.inf)
    if params.top_p < 1:
        scaled = _keep_top_p(scaled, params.top_p)
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled < math.log(params.min_p), -math.inf)
    return scaled


def probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that the request samples from: float64 [r, V], rows sum to 1."""
    return torch.softmax(filtered_logits(logits, params), dim=-1)


def _keep_top_p(scaled: Tensor, top_p: float) -> Tensor:
    """Nucleus filter (1904.09751): the fewest likeliest tokens whose mass reaches `top_p`."""
    token_probs = torch.softmax(scaled, dim=-1)
    smallest = torch.stack([_smallest_in_nucleus(row, top_p) for row in token_probs])
    return scaled.masked_fill(token_probs < smallest[:, None], -math.inf)


def _smallest_in_nucleus(token_probs: Tensor, top_p: float) -> Tensor:
    """The probability of the last token of the nucleus of one row [V]."""
    vocab_size = len(token_probs)
    for num_candidates in (*(n for n in TOP_P_CANDIDATES if n < vocab_size), vocab_size):
        candidates = token_probs.topk(num_candidates).values
        num_before = (candidates.cumsum(dim=0) < top_p).sum()
        if num_before < num_candidates:
            return candidates[num_before]
    # Rounding kept the whole mass below top_p: nothing is filtered.
    return candidates[-1]
