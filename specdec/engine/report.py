"""What a request is told of itself when it ends, and log-probabilities of what was emitted."""

from __future__ import annotations

import torch

from specdec.sampling.logprobs import token_logprobs
from specdec.sampling.processors import makes_law
from specdec.sequence import RequestMetrics, Sequence, TokenLogprobs


def request_metrics(
    sequence: Sequence, disabled_reason: str | None, now_s: float
) -> RequestMetrics:
    """The summary that rides on a sequence's last output."""
    wish = sequence.params.speculation
    first_s = sequence.first_token_s if sequence.first_token_s is not None else now_s
    scheduled_s = sequence.first_scheduled_s
    clipped = wish.k is not None and wish.k > sequence.max_k
    return RequestMetrics(
        mode=wish.mode,
        verification=sequence.verification,
        drafter=sequence.used_drafter,
        disabled_reason=disabled_reason,
        clipped_k=sequence.max_k if clipped else None,
        max_k=sequence.max_k,
        stats=sequence.stats,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_output_tokens=sequence.num_output_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_preemptions=sequence.num_preemptions,
        queue_s=(scheduled_s if scheduled_s is not None else now_s) - sequence.arrival_s,
        time_to_first_token_s=first_s - sequence.arrival_s,
        generation_s=now_s - first_s,
    )


def output_logprobs(
    sequence: Sequence, raw: torch.Tensor, kept: list[int]
) -> list[TokenLogprobs] | None:
    """Log-probabilities of the tokens kept from one verify pass; `raw` [>= len(kept), V] are its
    logit rows in order. None where the request did not ask."""
    top_n = sequence.params.logprobs
    if top_n is None or not kept:
        return None
    return token_logprobs(raw[: len(kept)], kept, top_n)


class PromptLogprobs:
    """Collects log-probabilities of a prompt over its chunks; the first token has none."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        is_asked = sequence.params.prompt_logprobs is not None
        self.positions: list[TokenLogprobs | None] = [None] if is_asked else []

    def add(self, raw: torch.Tensor) -> bool:
        """`raw` [n, V] are the rows of the chunk that starts at `num_computed_tokens`; row i
        predicts the token behind it. A preempted prompt is computed again: what is known stays.
        False, and nothing added, where a row makes no law."""
        sequence, top_n = self._sequence, self._sequence.params.prompt_logprobs
        if top_n is None or raw.shape[0] == 0:
            return True
        if not bool(makes_law(raw).all()):
            return False
        start = sequence.num_computed_tokens + 1
        end = min(start + raw.shape[0], sequence.num_prompt_tokens)
        known = max(start, len(self.positions))
        targets = sequence.token_ids[known:end]
        rows = raw[known - start : known - start + len(targets)]
        self.positions.extend(token_logprobs(rows, targets, top_n))
        return True
