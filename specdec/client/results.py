"""What the client returns: plain frozen dataclasses, and how they are read from messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from specdec.sequence import Explanation
from specdec.v1 import inference_pb2, sampling_pb2

FINISH_REASONS: dict[int, str | None] = {
    inference_pb2.FINISH_REASON_UNSPECIFIED: None,
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
    inference_pb2.FINISH_REASON_ABORT: "abort",
    inference_pb2.FINISH_REASON_ERROR: "error",
}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log-probability under the target.

    `token_bytes` is what it adds to the text, maybe a part of a character only; empty for special
    tokens that the text leaves out.
    """

    token_id: int
    logprob: float
    token_bytes: bytes = b""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position; `token` is None only at the first prompt position."""

    token: TokenLogprob | None
    rank: int
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went on the server, in seconds from its arrival."""

    queued_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """How speculation went for a request. A draft is a step that verified a draft token.

    `clipped_k` is the K that a request of mode fixed got where the operator's limit cut it.
    `explanations` has one entry per decode step where the request asked for it.
    """

    mode: str
    clipped_k: int | None
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    drafter: str | None
    verification: str | None
    disabled_reason: str | None
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True)
class ExplainedSequence:
    """One sequence of a request that was asked about. `finish_reason` is None while it runs;
    `num_steps` counts all its decode steps, of which `explanations` may hold the last only."""

    request_id: str
    replica_id: str
    finish_reason: str | None
    num_steps: int
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one engine step produced. The last one carries `finish_reason` and the summaries.

    `text` may lag behind `token_ids`: it never splits a character or a possible stop string.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...]
    draft_token_ids: tuple[int, ...]
    num_accepted_tokens: int
    finish_reason: str | None
    stop_reason: str | int | None
    usage: Usage | None
    speculation: Speculation | None
    timing: Timing | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole continuation. `stop_reason` is the stop string or token id that ended it."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...]
    finish_reason: str | None
    stop_reason: str | int | None
    usage: Usage
    speculation: Speculation
    timing: Timing


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that the server has. `max_model_len` bounds prompt and output together."""

    name: str
    vocab_size: int
    max_model_len: int
    tokenizer_hash: str
    drafters: tuple[str, ...]
    max_num_speculative_tokens: int
    has_chat_template: bool


def chunk(message: inference_pb2.GenerateResponse) -> Chunk:
    """Read one streamed message."""
    return Chunk(
        request_id=message.request_id,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=_positions(message.logprobs),
        prompt_logprobs=_positions(message.prompt_logprobs),
        draft_token_ids=tuple(message.draft_token_ids),
        num_accepted_tokens=message.num_accepted_tokens,
        finish_reason=_finish_reason(message.finish_reason),
        stop_reason=_stop_reason(message),
        usage=_usage(message.usage) if message.HasField("usage") else None,
        speculation=_speculation(message.speculation) if message.HasField("speculation") else None,
        timing=_timing(message.timing) if message.HasField("timing") else None,
    )


def completion(message: inference_pb2.CompleteResponse) -> Completion:
    """Read a whole continuation."""
    return Completion(
        request_id=message.request_id,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=_positions(message.logprobs),
        prompt_logprobs=_positions(message.prompt_logprobs),
        finish_reason=_finish_reason(message.finish_reason),
        stop_reason=_stop_reason(message),
        usage=_usage(message.usage),
        speculation=_speculation(message.speculation),
        timing=_timing(message.timing),
    )


def model_info(message: inference_pb2.GetModelResponse) -> ModelInfo:
    """Read a model's description."""
    return ModelInfo(
        name=message.model,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        tokenizer_hash=message.tokenizer_hash,
        drafters=tuple(message.drafters),
        max_num_speculative_tokens=message.max_num_speculative_tokens,
        has_chat_template=message.has_chat_template,
    )


def explained(message: inference_pb2.ExplainResponse) -> tuple[ExplainedSequence, ...]:
    """Read why a request's sequences got their K."""
    return tuple(
        ExplainedSequence(
            request_id=sequence.request_id,
            replica_id=sequence.replica_id,
            finish_reason=_finish_reason(sequence.finish_reason),
            num_steps=sequence.num_steps,
            explanations=_explanations(sequence.explanations),
        )
        for sequence in message.sequences
    )


def _finish_reason(value: int) -> str | None:
    # A reason that a newer server knows and this client does not is still an end.
    return FINISH_REASONS.get(value, "unknown")


def _stop_reason(
    message: inference_pb2.GenerateResponse | inference_pb2.CompleteResponse,
) -> str | int | None:
    match message.WhichOneof("stop_reason"):
        case "stop_string":
            return message.stop_string
        case "stop_token_id":
            return message.stop_token_id
        case _:
            return None


def _positions(
    messages: Iterable[inference_pb2.PositionLogprobs],
) -> tuple[PositionLogprobs, ...]:
    return tuple(
        PositionLogprobs(
            token=_token(message.token) if message.HasField("token") else None,
            rank=message.rank,
            top=tuple(_token(token) for token in message.top),
        )
        for message in messages
    )


def _token(message: inference_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.token_id, message.logprob, message.token_bytes)


def _usage(message: inference_pb2.Usage) -> Usage:
    return Usage(message.num_prompt_tokens, message.num_cached_tokens, message.num_output_tokens)


def _timing(message: inference_pb2.Timing) -> Timing:
    return Timing(_seconds(message.queued), _seconds(message.first_token), _seconds(message.total))


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _speculation(message: inference_pb2.SpeculationStats) -> Speculation:
    return Speculation(
        mode=_word(sampling_pb2.SpeculationMode, "SPECULATION_MODE_", message.mode) or "auto",
        clipped_k=message.clipped_k if message.HasField("clipped_k") else None,
        num_steps=message.num_steps,
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_emitted_accepted_tokens=message.num_emitted_accepted_tokens,
        accepted_per_position=tuple(message.accepted_per_position),
        drafter=message.drafter or None,
        verification=_word(sampling_pb2.Verification, "VERIFICATION_", message.verification),
        disabled_reason=message.disabled_reason or None,
        explanations=_explanations(message.explanations),
    )


def _explanations(messages: Iterable[inference_pb2.Explanation]) -> tuple[Explanation, ...]:
    return tuple(
        Explanation(
            step=message.step,
            time_s=message.time_s,
            phase=message.phase,
            drafter=message.drafter or None,
            k=message.k,
            num_draft_tokens=_optional(message, "num_draft_tokens"),
            num_accepted_tokens=_optional(message, "num_accepted_tokens"),
            survival=tuple(message.survival),
            shadow_price=message.shadow_price,
            depth_price=message.depth_price,
            predicted_speedup=message.predicted_speedup,
            guard_ratio=message.guard_ratio,
            reason=message.reason,
        )
        for message in messages
    )


def _optional(message: inference_pb2.Explanation, name: str) -> int | None:
    return int(getattr(message, name)) if message.HasField(name) else None


def _word(enum: Any, prefix: str, value: int) -> str | None:
    """VERIFICATION_COUPLED becomes "coupled"; unspecified and unknown values None."""
    known = enum.DESCRIPTOR.values_by_number.get(value)
    if known is None or value == 0:
        return None
    return str(known.name.removeprefix(prefix).lower())
