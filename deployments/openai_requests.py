"""OpenAI's request bodies with vLLM's extra fields, and what they mean to the engine.

Types are checked here and named in the error; values are checked by `SamplingParams.validate`, the
same for every interface. Unknown top-level fields are ignored, as OpenAI's and vLLM's servers do;
inside our own `speculation` object they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.body_fields import (
    FIRST_FAULT,
    Fields,
    Int,
    LogitBias,
    PromptBody,
    Stop,
    Texts,
    TokenIds,
    at_most,
)
from deployments.chat_messages import Messages, check_open_turn, template_messages, template_tools
from deployments.json_bounds import check_json
from deployments.prompts import Prompt, Prompter
from specdec.errors import InvalidRequestError
from specdec.params import MAX_BAD_WORDS, MAX_SHOWN, SamplingParams, SpeculationParams, shown

DEFAULT_COMPLETION_TOKENS = 16
# What a caller would not notice to be missing until too late is refused, not ignored.
UNSUPPORTED = ("suffix", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
# What clients of other servers send to ask for none.
RANDOM_SEED = -1
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

MAX_TOOLS = 128
Body = TypeVar("Body", bound=BaseModel)


class StreamOptions(Fields):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(Fields):
    """What completions and chat share."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: Int | None = None
    n: Annotated[Int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    seed: Int | None = None
    stop: Stop = None
    stop_token_ids: TokenIds | None = None
    logit_bias: LogitBias | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int | None = None
    ignore_eos: bool = False
    bad_words: Annotated[Texts, at_most(MAX_BAD_WORDS)] | None = None
    allowed_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Annotated[Int, Field(ge=1)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    response_format: dict[str, Any] | None = None
    speculation: Any = None
    speculation_mode: str | None = None
    speculation_k: Int | None = None

    def check_supported(self) -> None:
        """Refuse what would change the output and is not built."""
        kind = (self.response_format or {}).get("type", "text")
        if kind != "text":
            raise InvalidRequestError(
                f"response_format: {shown(kind)} is not supported; allowed: 'text'",
                field="response_format",
            )
        for name in UNSUPPORTED:
            if (self.model_extra or {}).get(name) is not None:
                raise InvalidRequestError(f"{name}: is not supported", field=name)
        best_of = (self.model_extra or {}).get("best_of")
        if best_of is not None and best_of != self.n:
            raise InvalidRequestError("best_of: must equal n", field="best_of")

    def sent_names(self) -> dict[str, str]:
        """The engine's name of a field -> what this client called it, where that differs."""
        if self.speculation is not None:
            return {}
        return {"speculation.mode": "speculation_mode", "speculation.k": "speculation_k"}

    def speculation_params(self) -> SpeculationParams:
        """The `speculation` object, or its flat aliases for benchmark clients."""
        if self.speculation is not None:
            return SpeculationParams.from_mapping(self.speculation)
        flat: dict[str, Any] = {}
        if self.speculation_k is not None:
            flat = {"mode": "fixed", "k": self.speculation_k}
        if self.speculation_mode is not None:
            flat["mode"] = self.speculation_mode
        return SpeculationParams.from_mapping(flat)

    def sampling_params(
        self, prompter: Prompter, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """The engine's parameters; values are not checked yet."""
        given = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "seed",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
                "min_tokens",
            )
            if (value := getattr(self, name)) is not None
        }
        if given.get("seed") == RANDOM_SEED:
            del given["seed"]
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias=_logit_bias(self.logit_bias),
            bad_words_token_ids=prompter.bad_words(self.bad_words or ()),
            allowed_token_ids=None
            if self.allowed_token_ids is None
            else _distinct(self.allowed_token_ids),
            stop=_stop(self.stop),
            stop_token_ids=_distinct(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            speculation=self.speculation_params(),
            **given,
        )


class CompletionBody(_Body):
    """POST /v1/completions."""

    prompt: PromptBody
    echo: bool = False
    logprobs: Int | None = None
    add_special_tokens: bool = True

    def prompts(self) -> list[Prompt]:
        """One entry per prompt: text, or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise InvalidRequestError("prompt: must not be empty", field="prompt")
        if isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)

    def output_tokens(self) -> int:
        """None but the prompt is scored where the client says so."""
        if self.max_tokens == 0 and not (self.echo or self.prompt_logprobs is not None):
            raise InvalidRequestError(
                "max_tokens: must be an integer >= 1, or 0 with echo or prompt_logprobs; got 0",
                field="max_tokens",
            )
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def num_prompt_logprobs(self) -> int | None:
        """An echo with `logprobs` needs those of the prompt, and so does a prompt without more."""
        if self.prompt_logprobs is None and self.echo and self.max_tokens == 0:
            return self.logprobs or 0
        if self.prompt_logprobs is None and self.echo:
            return self.logprobs
        return self.prompt_logprobs

    def sent_names(self) -> dict[str, str]:
        derived = {"prompt_logprobs": "logprobs"} if self.prompt_logprobs is None else {}
        return super().sent_names() | derived


class ChatBody(_Body):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None
    tools: Annotated[list[dict[str, Any]], FIRST_FAULT, at_most(MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def check_supported(self) -> None:
        super().check_supported()
        if self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError(
                "tool_choice: a required or named tool is not supported; allowed: 'none', 'auto'",
                field="tool_choice",
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs: is only allowed with logprobs true", field="top_logprobs"
            )
        check_open_turn(self)

    def template_messages(self) -> list[dict[str, Any]]:
        return template_messages(self.messages)

    def template_arguments(self) -> dict[str, Any]:
        arguments = dict(self.chat_template_kwargs or {})
        if self.tools and self.tool_choice != "none":
            arguments["tools"] = template_tools(self.tools)
        return arguments

    def sent_names(self) -> dict[str, str]:
        names = super().sent_names() | {"prompt": "messages", "logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def output_tokens(self, room: int) -> int:
        """`max_completion_tokens` wins over the older `max_tokens`; default: all that fits."""
        for asked in (self.max_completion_tokens, self.max_tokens):
            if asked is not None:
                return asked
        return max(1, room)

    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(Fields):
    """POST /tokenize, as vLLM's: a prompt or messages."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeBody(Fields):
    """POST /detokenize, as vLLM's."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: TokenIds


def parse(kind: type[Body], raw: bytes, max_bytes: int) -> Body:
    """The body as a `kind`. Raises InvalidRequestError that names the first field at fault, or says
    that it holds more than a body of at most `max_bytes` may."""
    check_json(raw, max_bytes)
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _invalid(error) from None


@contextmanager
def as_sent(body: _Body) -> Iterator[None]:
    """Errors within name the field that the client sent, where the engine calls it otherwise."""
    try:
        yield
    except InvalidRequestError as error:
        name = body.sent_names().get(error.field or "")
        if name is None:
            raise
        told = error.message.removeprefix(f"{error.field}: ")
        raise InvalidRequestError(f"{name}: {told}", field=name) from None


def _invalid(error: ValidationError) -> InvalidRequestError:
    errors = error.errors(include_url=False)
    # Of a union, the branch that was meant.
    first = next((each for each in errors if each["type"] == "too_many"), errors[0])
    if first["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {first['msg']}", field="body")
    # Unions add the name of the branch that was tried to the location: it is none of ours.
    path = [str(part)[:MAX_SHOWN] for part in first["loc"] if not _is_branch(part)]
    field = ".".join(path) or "body"
    is_told = first["type"] in ("missing", "too_many", "bias")
    given = "" if is_told else f", got {shown(first.get('input'))}"
    return InvalidRequestError(f"{field}: {first['msg']}{given}", field=field)


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (part in ("str", "int", "float", "bool") or "[" in part)


def _distinct(token_ids: list[int]) -> tuple[int, ...]:
    """A set of ids, however often the caller wrote one."""
    return tuple(sorted(set(token_ids)))


def _stop(stop: Stop) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    """Keys must be written one way only, or two of them could name one token."""
    for key in bias or {}:
        if TOKEN_ID.fullmatch(key) is None:
            raise InvalidRequestError(
                f"logit_bias: {shown(key)} is not a token id", field="logit_bias"
            )
    return {int(key): value for key, value in (bias or {}).items()}
