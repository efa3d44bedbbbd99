"""From Python arguments to request messages. A value that cannot be sent is refused by name;
what it may be is the server's to judge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from google.protobuf.duration_pb2 import Duration

from specdec.errors import InvalidRequestError
from specdec.params import SpeculationParams
from specdec.v1 import inference_pb2, sampling_pb2

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate` and `complete`. Defaults are the server's: see README, or
    `specdec.params.SamplingParams`. `speculation` is a mapping such as
    `{"mode": "fixed", "k": 4}`; `bad_words` are texts."""

    model: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    bad_words: Sequence[str]
    bad_words_token_ids: Sequence[Sequence[int]]
    allowed_token_ids: Sequence[int]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logprobs: int
    prompt_logprobs: int
    speculation: Mapping[str, object]
    cache_salt: str
    request_id: str


SCALARS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
)
LISTS = ("stop", "stop_token_ids")
TEXTS = ("model", "cache_salt", "request_id")


def generate_request(
    prompt: Prompt, options: Mapping[str, Any], timeout_s: float
) -> inference_pb2.GenerateRequest:
    """The message for one prompt. Raises InvalidRequestError, naming the argument."""
    for name in options:
        if name not in GenerateOptions.__annotations__:
            raise TypeError(f"unknown keyword {name!r}")
    given = {name: value for name, value in options.items() if value is not None}
    request = inference_pb2.GenerateRequest(timeout=duration(timeout_s))
    _set_prompt(request, prompt)
    for name in TEXTS:
        if name in given:
            _assign(request, name, given[name])
    if "bad_words" in given:
        _extend(request, "bad_words", given["bad_words"])
    if "speculation" in given:
        request.speculation.CopyFrom(_speculation(given["speculation"]))
    _set_sampling(request.sampling, given)
    return request


def explain_request(request_id: str) -> inference_pb2.ExplainRequest:
    """The message that asks why. Raises InvalidRequestError for what is no text."""
    request = inference_pb2.ExplainRequest()
    _assign(request, "request_id", request_id)
    return request


def duration(seconds: float) -> Duration:
    """A protobuf duration of a positive, finite number of seconds."""
    if not (isinstance(seconds, (int, float)) and 0 < seconds < math.inf):
        raise InvalidRequestError(
            f"timeout_s: must be a positive number of seconds, got {seconds!r}", field="timeout_s"
        )
    result = Duration()
    result.FromNanoseconds(int(seconds * 1e9))
    return result


def chat_messages(messages: Sequence[Message]) -> inference_pb2.ChatMessages:
    """A conversation: each message has exactly a role and a content, both text."""
    result = inference_pb2.ChatMessages()
    for index, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise InvalidRequestError(
                f"messages[{index}]: must have the keys role and content, got {sorted(message)}",
                field=f"messages[{index}]",
            )
        entry = result.messages.add()
        for name in ("role", "content"):
            _assign(entry, name, message[name], f"messages[{index}].{name}")
    return result


def is_chat(prompt: object) -> bool:
    """Whether a prompt is a conversation rather than token ids."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def tokenize_request(
    prompt: str | Sequence[Message], model: str, add_special_tokens: bool | None
) -> inference_pb2.TokenizeRequest:
    """The message that asks for the token ids of a text or a conversation."""
    request = inference_pb2.TokenizeRequest()
    _assign(request, "model", model)
    if isinstance(prompt, str):
        _assign(request, "text", prompt, "prompt")
    else:
        request.chat.CopyFrom(chat_messages(prompt))
    if add_special_tokens is not None:
        _assign(request, "add_special_tokens", add_special_tokens)
    return request


def detokenize_request(
    token_ids: Sequence[int], model: str, skip_special_tokens: bool | None
) -> inference_pb2.DetokenizeRequest:
    """The message that asks for the text of token ids."""
    request = inference_pb2.DetokenizeRequest()
    _assign(request, "model", model)
    _extend(request, "token_ids", token_ids)
    if skip_special_tokens is not None:
        _assign(request, "skip_special_tokens", skip_special_tokens)
    return request


def _set_prompt(request: inference_pb2.GenerateRequest, prompt: Any) -> None:
    if isinstance(prompt, str):
        _assign(request, "text", prompt, "prompt")
    elif is_chat(prompt):
        request.chat.CopyFrom(chat_messages(prompt))
    else:
        request.token_ids.SetInParent()
        _extend(request.token_ids, "token_ids", prompt, "prompt")


def _set_sampling(sampling: sampling_pb2.SamplingParams, given: Mapping[str, Any]) -> None:
    for name in SCALARS:
        if name in given:
            _assign(sampling, name, given[name])
    for name in LISTS:
        if name in given:
            value = given[name]
            _extend(sampling, name, [value] if isinstance(value, str) else value)
    if "allowed_token_ids" in given:
        # Present but empty is an error that the server names; absent means all.
        sampling.allowed_token_ids.SetInParent()
        _extend(
            sampling.allowed_token_ids,
            "token_ids",
            given["allowed_token_ids"],
            "allowed_token_ids",
        )
    for word in given.get("bad_words_token_ids", ()):
        _extend(sampling.bad_words_token_ids.add(), "token_ids", word, "bad_words_token_ids")
    for token_id, bias in given.get("logit_bias", {}).items():
        try:
            sampling.logit_bias[token_id] = bias
        except (TypeError, ValueError, OverflowError) as error:
            raise _refusal("logit_bias", {token_id: bias}, error) from None


def _speculation(value: object) -> sampling_pb2.SpeculationParams:
    params = SpeculationParams.from_mapping(value)
    verification = "UNSPECIFIED" if params.verification == "auto" else params.verification.upper()
    message = sampling_pb2.SpeculationParams(
        mode=f"SPECULATION_MODE_{params.mode.upper()}",
        verification=f"VERIFICATION_{verification}",
        explain=params.explain,
    )
    for name in ("k", "max_k", "drafter"):
        if getattr(params, name) is not None:
            _assign(message, name, getattr(params, name), f"speculation.{name}")
    return message


def _assign(message: Any, name: str, value: object, field: str | None = None) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refusal(field or name, value, error) from None


def _extend(message: Any, name: str, values: Any, field: str | None = None) -> None:
    try:
        getattr(message, name).extend(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refusal(field or name, values, error) from None


def _refusal(field: str, value: object, error: Exception) -> InvalidRequestError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InvalidRequestError(f"{field}: cannot send {shown}: {error}", field=field)
