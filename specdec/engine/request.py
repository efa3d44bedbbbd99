"""A request as the engine takes it, and how it becomes a Sequence.

Here the operator's limits meet the client's wishes: which drafters may propose, how large K may
be, which verification rule applies. It knows nothing of steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from specdec.config import DEFAULT_MAX_LOGPROBS_BYTES, SpeculationConfig
from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams, shown, validate_prompt
from specdec.sequence import Sequence, Verification, resolve_verification

# One (token, log-probability) at its peak: in the engine's lists, in the gateway's, and in the JSON
# that is made of them, all at once.
BYTES_PER_LOGPROB = 700


@dataclass(slots=True)
class GenerateRequest:
    """One prompt to continue. `partition` (tenant and cache_salt) bounds whom it shares cached
    text with; `timeout_s` counts from arrival; `traceparent` is the W3C trace context of a request
    that is traced, else "". `traffic_class` (a tenant) names totals that also count it, None: none.
    `is_checked`: parameters and prompt were checked at the front door, against this engine's own
    limits, so that the engine's thread need not.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    partition: str = ""
    timeout_s: float | None = None
    traceparent: str = ""
    traffic_class: str | None = None
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_logprobs_bytes: int = DEFAULT_MAX_LOGPROBS_BYTES


def allowed_drafters(params: SamplingParams, config: SpeculationConfig) -> tuple[str, ...]:
    """Drafters that may propose for this request, in order of preference.

    Raises InvalidRequestError where the request names one that is not served here.
    """
    wanted = params.speculation.drafter
    if wanted is not None and wanted not in config.drafters:
        served = ", ".join(config.drafters) or "none"
        raise InvalidRequestError(
            f"speculation.drafter: {shown(wanted)} is not served here; served: {served}",
            field="speculation.drafter",
        )
    if params.speculation.mode == "off" or config.max_num_speculative_tokens == 0:
        return ()
    return (wanted,) if wanted is not None else config.drafters


def largest_k(params: SamplingParams, config: SpeculationConfig) -> int:
    """The cap on K for this request: the client's, within the operator's."""
    wish = params.speculation
    asked = wish.k if wish.mode == "fixed" else wish.max_k
    limit = config.max_num_speculative_tokens
    return limit if asked is None else min(asked, limit)


def check_request(request: GenerateRequest, limits: Limits) -> None:
    """Raises InvalidRequestError, naming the field, unless the model can do what is asked."""
    params, prompt = request.params, request.prompt_token_ids
    params.validate(limits.vocab_size)
    validate_prompt(prompt, params, limits.vocab_size, limits.max_model_len)
    check_logprobs(params, [len(prompt)], 1, limits.max_model_len, limits.max_logprobs_bytes)


def check_logprobs(
    params: SamplingParams, prompt_lens: SequenceOf[int], n: int, max_model_len: int, max_bytes: int
) -> None:
    """Whether the log-probabilities of `n` completions of each prompt stay within `max_bytes`, if
    no output ends early. Raises InvalidRequestError, naming the larger part of them."""
    in_prompts = in_outputs = 0
    if params.prompt_logprobs is not None:
        in_prompts = n * sum(prompt_lens) * (1 + params.prompt_logprobs)
    if params.logprobs is not None:
        longest = (min(params.max_tokens, max_model_len - length) for length in prompt_lens)
        in_outputs = n * sum(longest) * (1 + params.logprobs)
    num_bytes = (in_prompts + in_outputs) * BYTES_PER_LOGPROB
    if num_bytes <= max_bytes:
        return
    field = "prompt_logprobs" if in_prompts > in_outputs else "logprobs"
    raise InvalidRequestError(
        f"{field}: up to {in_prompts + in_outputs} log-probabilities would take {num_bytes} bytes, "
        f"over all completions of this request; allowed: {max_bytes}. Ask for fewer per token, "
        "fewer tokens or completions, or shorter prompts",
        field=field,
    )


def make_sequence(
    request: GenerateRequest, seq_id: int, config: SpeculationConfig, limits: Limits, now_s: float
) -> Sequence:
    """Check a request and give it its place in the engine.

    Raises InvalidRequestError, naming the field.
    """
    params = request.params
    if not request.is_checked:
        check_request(request, limits)
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidRequestError("timeout: must be above 0 seconds", field="timeout")
    verification = resolve_verification(params)
    return Sequence(
        seq_id=seq_id,
        request_id=request.request_id,
        token_ids=list(request.prompt_token_ids),
        num_prompt_tokens=len(request.prompt_token_ids),
        params=params,
        seed=_seed(params, verification),
        verification=verification,
        eos_token_ids=limits.eos_token_ids,
        max_model_len=limits.max_model_len,
        partition=request.partition,
        traceparent=request.traceparent,
        traffic_class=request.traffic_class,
        arrival_s=now_s,
        deadline_s=None if request.timeout_s is None else now_s + request.timeout_s,
        max_k=largest_k(params, config),
        drafters=allowed_drafters(params, config),
    )


def _seed(params: SamplingParams, verification: Verification) -> int:
    """64 bits. The request's own where text is promised to follow from it, that is coupled.

    Elsewhere it decides which draft tokens are accepted, and a drafter that knew it beforehand,
    from the client say, could steer the output: fresh for every request, and told to nobody.
    """
    if verification is Verification.COUPLED and params.seed is not None:
        return params.seed % 2**64
    return secrets.randbits(64)
