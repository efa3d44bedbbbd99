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
    """One output sequence of a response; several may continue one prompt."""

    index: int
    prompt_index: int
    num_prompt_tokens: int
    num_outputs: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    metrics: RequestMetrics | None = None

    def add(self, output: SequenceOutput) -> None:
        self.num_outputs += 1
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs or []
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.metrics = output.metrics


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Token counts of a response, or of some of its choices; a prompt counts once however many
    choices continue it, and so do its cached tokens: those that the luckiest of them found."""
    prompts: dict[int, int] = {}
    cached: dict[int, int] = {}
    for choice in choices:
        prompts[choice.prompt_index] = choice.num_prompt_tokens
        found = 0 if choice.metrics is None else choice.metrics.num_cached_tokens
        cached[choice.prompt_index] = max(found, cached.get(choice.prompt_index, 0))
    num_prompt = sum(prompts.values())
    num_completion = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
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
