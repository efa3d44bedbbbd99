"""Engine outputs as OpenAI's response bodies and stream chunks, with vLLM's extras.

One `Choice` per sequence collects what it emitted; the functions below write it down in the shape
of either endpoint. Nothing here waits or decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.explanations import explanation_json
from deployments.prompts import Prompter
from specdec.errors import (
    BodyTimeoutError,
    DeadlineError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelOutputError,
    OverloadedError,
    RequestNotFoundError,
    SpecdecError,
    UnauthenticatedError,
    UnavailableError,
)
from specdec.sequence import RequestMetrics, SequenceOutput, TokenLogprobs

STATUS: dict[type[SpecdecError], tuple[int, str]] = {
    InvalidRequestError: (400, "BadRequestError"),
    UnauthenticatedError: (401, "AuthenticationError"),
    ForbiddenError: (403, "PermissionDeniedError"),
    ModelNotFoundError: (404, "NotFoundError"),
    RequestNotFoundError: (404, "NotFoundError"),
    BodyTimeoutError: (408, "TimeoutError"),
    OverloadedError: (429, "RateLimitError"),
    UnavailableError: (503, "ServiceUnavailableError"),
    DeadlineError: (504, "TimeoutError"),
    ModelOutputError: (500, "InternalServerError"),
}
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One output sequence of a response."""

    index: int
    num_prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    metrics: RequestMetrics | None = None

    def add(self, output: SequenceOutput) -> None:
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs or []
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.metrics = output.metrics


class TokenTexts:
    """Tokens as clients want them written in log-probabilities."""

    def __init__(self, prompter: Prompter, as_token_ids: bool) -> None:
        self._prompter = prompter
        self._as_token_ids = as_token_ids

    def text(self, token_id: int) -> str:
        if self._as_token_ids:
            return f"token_id:{token_id}"
        return self._prompter.decode([token_id])

    def num_characters(self, token_id: int) -> int:
        """How far a token moves `text_offset` on, however it is written."""
        return len(self._prompter.decode([token_id]))

    def chat_entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def completion_logprobs(
    positions: Sequence[TokenLogprobs], texts: TokenTexts, offset: int, first: int | None = None
) -> dict[str, Any]:
    """The `logprobs` object of /v1/completions.

    `offset`: characters of the tokens before, each decoded alone (a character that several tokens
    share counts for each). `first`: an echoed prompt's first token, which nothing predicts.
    """
    result: dict[str, Any] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    if first is not None:
        result["tokens"].append(texts.text(first))
        result["token_logprobs"].append(None)
        result["top_logprobs"].append(None)
        result["text_offset"].append(offset)
        offset += texts.num_characters(first)
    for position in positions:
        result["tokens"].append(texts.text(position.token_id))
        result["token_logprobs"].append(position.logprob)
        result["top_logprobs"].append({texts.text(t): value for t, value in position.top})
        result["text_offset"].append(offset)
        offset += texts.num_characters(position.token_id)
    return result


def chat_logprobs(positions: Sequence[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
    """The `logprobs` object of /v1/chat/completions."""
    return {
        "content": [
            {
                **texts.chat_entry(position.token_id, position.logprob),
                "top_logprobs": [texts.chat_entry(t, value) for t, value in position.top],
            }
            for position in positions
        ]
    }


def prompt_logprobs_entry(
    positions: Sequence[TokenLogprobs | None], texts: TokenTexts
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: one map from token id to log-probability per prompt token."""
    result: list[dict[str, Any] | None] = []
    for position in positions:
        if position is None:
            result.append(None)
            continue
        entries = [(position.token_id, position.logprob), *position.top]
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(position.top, start=1)}
        result.append(
            {
                str(token_id): {
                    "logprob": logprob,
                    "rank": ranks.get(token_id, position.rank),
                    "decoded_token": texts.text(token_id),
                }
                for token_id, logprob in entries
            }
        )
    return result


def usage(choices: Sequence[Choice], num_prompt_tokens: int) -> dict[str, Any]:
    """Token counts of a response; the prompt of n choices counts once."""
    num_completion = sum(len(choice.token_ids) for choice in choices)
    cached = [c.metrics.num_cached_tokens for c in choices if c.metrics is not None]
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt_tokens + num_completion,
        "prompt_tokens_details": {"cached_tokens": max(cached, default=0)},
    }


def request_metrics(choices: Sequence[Choice]) -> dict[str, Any] | None:
    """vLLM's per-request `metrics` with `speculative_decoding`; only for a single choice."""
    if len(choices) != 1 or choices[0].metrics is None:
        return None
    metrics = choices[0].metrics
    num_rest = max(1, metrics.num_output_tokens - 1)
    total_s = metrics.time_to_first_token_s + metrics.generation_s
    return {
        "time_to_first_token_ms": 1000 * metrics.time_to_first_token_s,
        "generation_time_ms": 1000 * metrics.generation_s,
        "queue_time_ms": 1000 * metrics.queue_s,
        "mean_itl_ms": 1000 * metrics.generation_s / num_rest,
        "tokens_per_second": metrics.num_output_tokens / total_s if total_s > 0 else 0.0,
        "speculative_decoding": speculative_decoding(metrics),
    }


def speculative_decoding(metrics: RequestMetrics) -> dict[str, Any]:
    """Acceptance in vLLM's shape, plus what only this service has to tell.

    `num_spec_tokens` is the cap on K; `acceptance_histogram[j]` counts drafts with j accepted.
    """
    stats = metrics.stats
    histogram = [0] * (metrics.max_k + 1)
    for num_accepted in stats.per_step_accepted:
        histogram[num_accepted] += 1
    drafts, drafted = stats.num_drafts, stats.num_draft_tokens
    result = {
        "mean_acceptance_length": 1 + stats.num_accepted_tokens / drafts if drafts else 1.0,
        "draft_acceptance_rate": stats.num_accepted_tokens / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": drafts,
        "num_decode_steps": stats.num_steps,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_emitted_accepted_draft_tokens": stats.num_emitted_accepted_tokens,
        "num_draft_tokens": drafted,
        "num_spec_tokens": metrics.max_k,
        "per_step_accepted": stats.per_step_accepted,
        "per_step_drafted": stats.per_step_drafted,
        "mode": metrics.mode,
        "verification": str(metrics.verification),
        "drafter": metrics.drafter,
        "disabled_reason": metrics.disabled_reason,
        "clipped_k": metrics.clipped_k,
    }
    if metrics.explanations is not None:
        result["explanations"] = [explanation_json(each) for each in metrics.explanations]
    return result


def error_body(error: SpecdecError) -> tuple[int, dict[str, Any]]:
    """HTTP status and OpenAI's error object."""
    status, kind = STATUS.get(type(error), (500, "InternalServerError"))
    message = error.message if type(error) in STATUS else "internal error"
    body = {"message": message, "type": kind, "param": error.field, "code": status}
    return status, {"error": body}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
