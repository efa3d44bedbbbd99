"""A sequence's rows in a step, from its texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specdec.params import SamplingParams
from specdec.sampling.processors import SequenceRows
from specdec.sampling.request_logits import RequestLogits


def logit_rows(
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    drafts: Sequence[int] = (),
    stops: Collection[int] = frozenset(),
) -> SequenceRows:
    return SequenceRows(RequestLogits(params, [*prompt, *output], len(prompt), stops), drafts)
