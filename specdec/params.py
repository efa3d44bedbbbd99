"""What a request may ask for: sampling and speculation parameters, and their validation.

The one place where values are checked, for HTTP, gRPC and in-process callers alike. It knows
token ids and numbers, not text: the gateway turns `bad_words` into ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
MIN_SEED = -(2**63)
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MODES = ("auto", "off", "fixed")
VERIFICATIONS = ("auto", "coupled", "rejection", "block", "typical")


def _fail(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {message}", field=name)


def _check_number(name: str, value: object, low: float, high: float, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fail(name, f"must be a number {allowed}, got {value!r}")
    if math.isnan(value) or not low <= value <= high:
        raise _fail(name, f"must be {allowed}, got {value!r}")


def _check_int(name: str, value: object, low: int, high: int, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(name, f"must be an integer {allowed}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """A client's wish about speculation for one request. `mode="auto"` leaves it to the controller.

    `k` is needed by, and only allowed with, `mode="fixed"`; `max_k` caps the controller.
    `epsilon` and `delta` belong to typical acceptance.
    """

    mode: str = "auto"
    k: int | None = None
    max_k: int | None = None
    drafter: str | None = None
    verification: str = "auto"
    epsilon: float | None = None
    delta: float | None = None

    @classmethod
    def from_mapping(cls, value: object) -> SpeculationParams:
        """Parse the `speculation` object of a request; an unknown key is an error."""
        if not isinstance(value, Mapping):
            raise _fail("speculation", f"must be an object, got {type(value).__name__}")
        known = cls.__slots__
        for key in value:
            if key not in known:
                raise _fail(f"speculation.{key}", f"unknown key; known keys: {', '.join(known)}")
        params = cls(**value)
        params.validate()
        return params

    def validate(self) -> None:
        """Check everything that needs no knowledge of the server's configuration."""
        if self.mode not in MODES:
            raise _fail("speculation.mode", f"must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.verification not in VERIFICATIONS:
            raise _fail(
                "speculation.verification",
                f"must be one of {', '.join(VERIFICATIONS)}, got {self.verification!r}",
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
            raise _fail("speculation.drafter", f"must be a string, got {self.drafter!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to continue one prompt. Defaults are OpenAI's where they exist, else vLLM's.

    `top_k=0` means no limit. `logprobs=n` returns the sampled token's log-probability and the n
    likeliest; `logprobs=0` only the sampled one's; None nothing. Log-probabilities are those of
    the target model before bias, penalties, temperature and filters (vLLM's `raw_logprobs`).
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
        return self.temperature == 0

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequestError, naming the field, unless every value is allowed."""
        _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1, ">= 1")
        _check_number("temperature", self.temperature, 0, 2, "between 0 and 2")
        _check_int("top_k", self.top_k, -1, 2**31 - 1, ">= 0 (0 or -1: no limit)")
        _check_number("top_p", self.top_p, 0, 1, "above 0 and at most 1")
        if self.top_p == 0:
            raise _fail("top_p", "must be above 0 and at most 1, got 0")
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
        self.speculation.validate()

    def _validate_token_ids(self, vocab_size: int) -> None:
        for token_id, bias in self.logit_bias.items():
            _check_token_id("logit_bias", token_id, vocab_size)
            _check_number("logit_bias", bias, -100, 100, "between -100 and 100")
        for token_id in self.stop_token_ids:
            _check_token_id("stop_token_ids", token_id, vocab_size)
        for word in self.bad_words_token_ids:
            if not word:
                raise _fail("bad_words", "must not hold an empty word")
            for token_id in word:
                _check_token_id("bad_words", token_id, vocab_size)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise _fail("allowed_token_ids", "must not be empty")
            for token_id in self.allowed_token_ids:
                _check_token_id("allowed_token_ids", token_id, vocab_size)

    def _validate_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _fail("stop", f"at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise _fail("stop", f"must hold non-empty strings, got {text!r}")


def _check_token_id(name: str, token_id: object, vocab_size: int) -> None:
    _check_int(name, token_id, 0, vocab_size - 1, f"token id between 0 and {vocab_size - 1}")


def validate_prompt(
    prompt_token_ids: Sequence[Any], params: SamplingParams, vocab_size: int, max_model_len: int
) -> None:
    """Check a prompt: not empty, ids in the vocabulary, room for at least one new token."""
    if not prompt_token_ids:
        raise _fail("prompt", "must hold at least one token")
    for token_id in prompt_token_ids:
        _check_token_id("prompt", token_id, vocab_size)
    if len(prompt_token_ids) >= max_model_len:
        raise _fail(
            "prompt",
            f"has {len(prompt_token_ids)} tokens; with one new token it must fit the context of "
            f"{max_model_len} tokens",
        )
    if len(prompt_token_ids) + params.min_tokens > max_model_len:
        raise _fail(
            "min_tokens",
            f"{params.min_tokens} beyond a prompt of {len(prompt_token_ids)} tokens exceeds the "
            f"context of {max_model_len} tokens",
        )
