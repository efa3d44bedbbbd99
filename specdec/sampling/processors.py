"""From the target's logits to the law that a request samples from.

`adjust_logits` adds bias and penalties and masks tokens, each row with the history that its
position would have if the draft tokens before it were accepted. `filtered_logits` and `probs` then
apply temperature, top-k, top-p and min-p, in that order. Nothing is sampled here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling.request_logits import RequestLogits


@dataclass(slots=True)
class SequenceRows:
    """The rows of one sequence in a step: row j follows its committed text and the first j of
    `draft_token_ids`. Rows before `first_row` are not computed."""

    request: RequestLogits
    draft_token_ids: Sequence[int] = ()
    first_row: int = 0

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_rows(self) -> int:
        return 1 + len(self.draft_token_ids) - self.first_row


def adjust_logits(logits: Tensor, groups: Sequence[SequenceRows]) -> Tensor:
    """`logits` [R, V] with what each request does to them; R = sum of the groups' rows.

    `logits` stay as they are, and are returned where no group needs anything; what is changed is at
    least float32.
    """
    assert sum(rows.num_rows for rows in groups) == len(logits)
    if not any(rows.request.needs_adjustment for rows in groups):
        return logits
    adjusted = []
    first_row = 0
    for rows in groups:
        part = logits[first_row : first_row + rows.num_rows]
        if rows.request.needs_adjustment:
            part = rows.request.adjust(part, rows.draft_token_ids)
        adjusted.append(part)
        first_row += rows.num_rows
    return adjusted[0] if len(adjusted) == 1 else torch.cat(adjusted)


def makes_law(logits: Tensor) -> Tensor:
    """Whether a token can be chosen by each row of `logits` [r, V]: bool [r].

    The largest entry must be finite. -inf excludes a token, be it by the model or by the request;
    NaN or +inf anywhere, or -inf everywhere, leave no law.
    """
    return logits.amax(dim=-1).isfinite()


def greedy_tokens(logits: Tensor) -> list[int | None]:
    """The argmax of each row of `logits` [r, V], None where it makes no law; in one transfer."""
    chosen = torch.where(makes_law(logits), _argmax(logits), -1)
    return [token_id if token_id >= 0 else None for token_id in chosen.tolist()]


def _argmax(logits: Tensor) -> Tensor:
    """numpy's takes a tenth of the time of torch's on CPU; it has no half precision of ours."""
    if logits.device.type != "cpu" or logits.dtype.itemsize < 4:
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def filtered_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """(logits - their maximum) / temperature, float64 [r, V], -inf outside top-k, top-p, min-p,
    of rows that make a law.

    Each filter keeps the tokens that tie with the last one kept, so that the result depends on
    the values of a row alone, never on the order of equals. Temperature must be above 0.
    """
    assert params.temperature > 0
    return torch.cat([_filtered(part, params) for part in _cached_parts(logits)])


def probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that the request samples from: float64 [r, V], rows sum to 1."""
    parts = _cached_parts(logits)
    return torch.cat([torch.softmax(_filtered(part, params), dim=-1) for part in parts])


def _cached_parts(logits: Tensor) -> Sequence[Tensor]:
    """One row at a time fits a processor's cache, which several at once do not (2 to 3 times
    slower); another device takes all at once."""
    return logits.split(1) if logits.device.type == "cpu" else [logits]


def _filtered(logits: Tensor, params: SamplingParams) -> Tensor:
    wide = logits.double()
    # Without the maximum, a tiny temperature cannot overflow to inf - inf.
    scaled = (wide - wide.amax(dim=-1, keepdim=True)) / params.temperature
    if 0 < params.top_k < scaled.shape[-1]:
        smallest = _kth_largest(scaled, params.top_k)
        scaled = scaled.masked_fill(scaled < smallest, -math.inf)
    if params.top_p < 1:
        scaled = _keep_top_p(scaled, params.top_p)
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled < math.log(params.min_p), -math.inf)
    return scaled


def _kth_largest(rows: Tensor, k: int) -> Tensor:
    """[r, 1]. A selection takes as long for any k; torch's own on CPU sorts what it finds."""
    if rows.device.type != "cpu":
        return rows.topk(k, dim=-1).values[:, -1:]
    place = rows.shape[-1] - k
    found = [np.partition(row, place)[place] for row in rows.numpy()]
    return rows.new_tensor(found)[:, None]


def _keep_top_p(scaled: Tensor, top_p: float) -> Tensor:
    """Nucleus filter (1904.09751): the fewest likeliest tokens whose mass reaches `top_p`."""
    token_probs = torch.softmax(scaled, dim=-1)
    smallest = torch.stack([_smallest_in_nucleus(row, top_p) for row in token_probs])
    return scaled.masked_fill(token_probs < smallest[:, None], -math.inf)


def _smallest_in_nucleus(token_probs: Tensor, top_p: float) -> Tensor:
    """The probability of the last token of the nucleus of one row [V]."""
    # All tokens below this together have less than what may be left out; half for rounding.
    floor = (1 - top_p) / len(token_probs) / 2
    if token_probs.device.type == "cpu":
        values = token_probs.numpy()
        return token_probs.new_tensor(_weighted_select(values[values >= floor], top_p))
    candidates = token_probs[token_probs >= floor].sort(descending=True).values
    num_before = int((candidates.cumsum(dim=0) < top_p).sum())
    # Where rounding kept the whole mass below top_p, nothing but the tail is filtered.
    return candidates[min(num_before, len(candidates) - 1)]


def _weighted_select(values: NDArray[np.float64], mass: float) -> float:
    """The largest of `values` [n] that, with all that are larger, sums to `mass`; the smallest
    where all together do not. Halved until what is left is cheap to sort: a flat row would take
    several times longer to sort as a whole."""
    above = 0.0
    while len(values) > 256:
        middle = len(values) // 2
        halves = np.partition(values, middle)
        mass_larger = float(halves[middle:].sum())
        if above + mass_larger >= mass:
            values = halves[middle:]
        else:
            above += mass_larger
            values = halves[:middle]
    descending = np.sort(values)[::-1]
    num_before = int(np.count_nonzero(above + np.cumsum(descending) < mass))
    return float(descending[min(num_before, len(descending) - 1)])
