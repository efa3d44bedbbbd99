"""What a request may ask for: sampling and speculation parameters, and their validation.

The one place where values are checked, for HTTP, gRPC and in-process callers alike. It knows
token ids and numbers, not text: the gateway turns `bad_words` into ids.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
MIN_SEED = -(2**63)
MAX_TOP_LOGPROBS = 20
# A request's lists are kept while it waits, and are work in each of its steps: none may be as long
# as the vocabulary but `allowed_token_ids`, whose cost in a step does not depend on its length.
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS = 1000
MAX_BAD_WORD_TOKENS = 100
MAX_BAD_WORDS_TOKENS = 10_000
# A word is banned as it begins a text and as it follows a space.
BAD_WORD_FORMS = 2
MAX_SHOWN = 80
MODES = ("auto", "off", "fixed")
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
VERIFICATIONS = ("auto", "coupled", "rejection", "block", "typical")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN


def shown(value: object) -> str:
    """A caller's value as an error message repeats it: at most 80 characters, whatever was sent."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python writes out no integer of more than 4300 digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _fail(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {message}", field=name)


def _check_number(name: str, value: object, low: float, high: float, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fail(name, f"must be a number {allowed}, got {shown(value)}")
    if not low <= value <= high:  # NaN too: it compares as false
        raise _fail(name, f"must be {allowed}, got {shown(value)}")


def _check_int(name: str, value: object, low: int, high: int, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(name, f"must be an integer {allowed}, got {shown(value)}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _fail(name, f"must be true or false, got {shown(value)}")


def _check_list(name: str, value: object, limit: int) -> None:
    """A list, tuple or set of at most `limit` entries."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
        raise _fail(name, f"must be a list, got {shown(value)}")
    if len(value) > limit:
        raise _fail(name, f"must have at most {limit} entries, got {len(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """A client's wish about speculation for one request. `mode="auto"` leaves it to the controller.

    `k` is needed by, and only allowed with, `mode="fixed"`; `max_k` caps the controller.
    `epsilon` and `delta` belong to typical acceptance. `explain` asks to be told which k was chosen
    when and why.
    """

    mode: str = "auto"
    k: int | None = None
    max_k: int | None = None
    drafter: str | None = None
    verification: str = "auto"
    epsilon: float | None = None
    delta: float | None = None
    explain: bool = False

    @classmethod
    def from_mapping(cls, value: object) -> SpeculationParams:
        """Parse the `speculation` object of a request; an unknown key is an error, None is as if
        absent, and a whole number may be a float."""
        if not isinstance(value, Mapping):
            raise _fail("speculation", f"must be an object, got {type(value).__name__}")
        known = cls.__slots__
        for key in value:
            if key not in known:
                name = str(key)[:MAX_SHOWN]
                raise _fail(f"speculation.{name}", f"unknown key; known keys: {', '.join(known)}")
        given = {key: item for key, item in value.items() if item is not None}
        for key in ("k", "max_k"):
            if isinstance(item := given.get(key), float) and item.is_integer():
                given[key] = int(item)
        params = cls(**given)
        params.validate()
        return params

    def validate(self) -> None:
        """Check everything that needs no knowledge of the server's configuration."""
        if self.mode not in MODES:
            raise _fail(
                "speculation.mode", f"must be one of {', '.join(MODES)}, got {shown(self.mode)}"
            )
        if self.verification not in VERIFICATIONS:
            raise _fail(
                "speculation.verification",
                f"must be one of {', '.join(VERIFICATIONS)}, got {shown(self.verification)}",
            )
        if self.verification == "typical":
            raise _fail(
                "speculation.verification",
                "'typical' is not supported yet; use auto, coupled, rejection or block",
            )
        if self.mode == "fixed" and self.k is None:
            raise _fail("speculation.k", "is required when speculation.mode is 'fixed'")
        if self.mode != "fixed" and self.k is not None:
            raise _fail("speculation.k", "is only allowed when speculation.mode is 'fixed'")
        for name in ("k", "max_k"):
            value = getattr(self, name)
            if value is not None:
                _check_int(f"speculation.{name}", value, 0, 2**31 - 1, ">= 0")
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                raise _fail(
                    f"speculation.{name}", "is only allowed with speculation.verification 'typical'"
                )
        if self.drafter is not None and not isinstance(self.drafter, str):
            raise _fail("speculation.drafter", f"must be a string, got {shown(self.drafter)}")
        _check_flag("speculation.explain", self.explain)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to continue one prompt. Defaults are OpenAI's where they exist, else vLLM's.

    `max_tokens=0` computes the prompt alone, for its log-probabilities. `top_k=0` means no limit.
    `logprobs=n` returns the sampled token's log-probability and the n likeliest; `logprobs=0` only
    the sampled one's; None nothing. Log-probabilities are those of the target model before bias,
    penalties, temperature and filters (vLLM's `raw_logprobs`).
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: SpeculationParams = SpeculationParams()

    @property
    def is_greedy(self) -> bool:
        """An empty nucleus is the likeliest token, as a temperature of 0 is."""
        return self.temperature == 0 or self.top_p == 0

    @property
    def law_temperature(self) -> float:
        """That of the law that tokens follow: 0 for a greedy request, whatever it wrote."""
        return 0.0 if self.is_greedy else self.temperature

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequestError, naming the field, unless every value is allowed."""
        fewest = 1 if self.prompt_logprobs is None else 0
        _check_int("max_tokens", self.max_tokens, fewest, 2**31 - 1, f">= {fewest}")
        _check_number("temperature", self.temperature, 0, 2, "between 0 and 2")
        _check_int("top_k", self.top_k, -1, 2**31 - 1, ">= 0 (0 or -1: no limit)")
        _check_number("top_p", self.top_p, 0, 1, "between 0 and 1")
        _check_number("min_p", self.min_p, 0, 1, "between 0 and 1")
        if self.seed is not None:
            _check_int("seed", self.seed, MIN_SEED, MAX_SEED, "of 64 bits (signed)")
        _check_number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6, "above 0")
        _check_number("presence_penalty", self.presence_penalty, -2, 2, "between -2 and 2")
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2, "between -2 and 2")
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens, "between 0 and max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, MAX_TOP_LOGPROBS, f"between 0 and {MAX_TOP_LOGPROBS}")
        self._validate_token_ids(vocab_size)
        self._validate_stop()
        for name in FLAGS:
            _check_flag(name, getattr(self, name))
        if not isinstance(self.speculation, SpeculationParams):
            raise _fail("speculation", f"must be SpeculationParams, got {shown(self.speculation)}")
        self.speculation.validate()

    def _validate_token_ids(self, vocab_size: int) -> None:
        """Every list is bounded: what a request costs in memory and in every step is too."""
        if not isinstance(self.logit_bias, Mapping):
            raise _fail("logit_bias", f"must be an object, got {shown(self.logit_bias)}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise _fail(
                "logit_bias",
                f"must have at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}",
            )
        for token_id, bias in self.logit_bias.items():
            _check_token_id("logit_bias", token_id, vocab_size)
            _check_number("logit_bias", bias, -100, 100, "between -100 and 100")
        _check_list("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        if self.allowed_token_ids is not None:
            _check_list("allowed_token_ids", self.allowed_token_ids, vocab_size)
            _check_token_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
            if not self.allowed_token_ids:
                raise _fail("allowed_token_ids", "must not be empty")
        self._validate_bad_words(vocab_size)

    def _validate_bad_words(self, vocab_size: int) -> None:
        _check_list("bad_words", self.bad_words_token_ids, MAX_BAD_WORDS * BAD_WORD_FORMS)
        for word in self.bad_words_token_ids:
            _check_list("bad_words", word, MAX_BAD_WORD_TOKENS)
            if not word:
                raise _fail("bad_words", "must not hold an empty word")
        num_tokens = sum(len(word) for word in self.bad_words_token_ids)
        if num_tokens > MAX_BAD_WORDS_TOKENS:
            raise _fail(
                "bad_words",
                f"must have at most {MAX_BAD_WORDS_TOKENS} tokens together, in both forms of each "
                f"word, got {num_tokens}",
            )
        for word in self.bad_words_token_ids:
            _check_token_ids("bad_words", word, vocab_size)

    def _validate_stop(self) -> None:
        _check_list("stop", self.stop, MAX_STOP_STRINGS)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise _fail("stop", f"must hold non-empty strings, got {shown(text)}")
            if len(text) > MAX_STOP_CHARS:
                raise _fail(
                    "stop",
                    f"strings must have at most {MAX_STOP_CHARS} characters, got {len(text)}",
                )


def _check_token_ids(name: str, token_ids: Collection[Any], vocab_size: int) -> None:
    # Many at once are seen to be right without a look at each: prompts are long.
    is_plain = set(map(type, token_ids)) == {int}
    if is_plain and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for token_id in token_ids:
        _check_token_id(name, token_id, vocab_size)


def _check_token_id(name: str, token_id: object, vocab_size: int) -> None:
    _check_int(name, token_id, 0, vocab_size - 1, f"token id between 0 and {vocab_size - 1}")


def validate_prompt(
    prompt_token_ids: Sequence[Any], params: SamplingParams, vocab_size: int, max_model_len: int
) -> None:
    """Check a prompt: not empty, ids in the vocabulary, room for a new token where one may come."""
    if not prompt_token_ids:
        raise _fail("prompt", "must hold at least one token")
    num_needed = len(prompt_token_ids) + min(1, params.max_tokens)
    if num_needed > max_model_len:
        new = "with one new token it" if params.max_tokens else "it"
        raise _fail(
            "prompt",
            f"has {len(prompt_token_ids)} tokens; {new} must fit the context of "
            f"{max_model_len} tokens",
        )
    if len(prompt_token_ids) + params.min_tokens > max_model_len:
        raise _fail(
            "min_tokens",
            f"{params.min_tokens} beyond a prompt of {len(prompt_token_ids)} tokens exceeds the "
            f"context of {max_model_len} tokens",
        )
    _check_token_ids("prompt", prompt_token_ids, vocab_size)
