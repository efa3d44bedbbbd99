"""Types of fields in request bodies: what clients write for a number, a list, nothing.

A null is as if the field were absent, and a whole number may be written as a float. Lists are
bounded before their entries are looked at, and the first wrong entry ends the check: an error for
each would cost more than the body.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specdec.params import MAX_STOP_STRINGS, shown

# What no vocabulary exceeds.
MAX_TOKEN_IDS = 2**19
MAX_FLOAT = sys.float_info.max


def at_most(limit: int) -> BeforeValidator:
    """For lists and objects: their length is checked before any of their entries."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > limit:
            raise PydanticCustomError(
                "too_many",
                "must have at most {limit} entries, got {length}",
                {"limit": limit, "length": len(value)},
            )
        return value

    return BeforeValidator(check)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_entries(value: Any) -> Any:
    if isinstance(value, list) and float in set(map(type, value)):
        return [_whole(entry) for entry in value]
    return value


class Fields(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


Int = Annotated[int, BeforeValidator(_whole)]
FIRST_FAULT = Field(fail_fast=True)
Texts = Annotated[list[str], FIRST_FAULT]
TokenIds = Annotated[
    list[int], FIRST_FAULT, BeforeValidator(_whole_entries), at_most(MAX_TOKEN_IDS)
]
Stop = str | Annotated[Texts, at_most(MAX_STOP_STRINGS)] | None
_PromptBody = str | list[str] | list[StrictInt] | list[list[StrictInt]]


def _prompt(value: Any) -> Any:
    """Kinds told apart by the first entry, so that each entry is looked at once."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _no_prompt()
    value = _whole_entries(value)
    first = type(value[0]) if value else str
    if first not in (str, int, list) or not _all_are(first, value):
        raise _no_prompt()
    if first is list:
        value = [_whole_entries(ids) for ids in value]
        if not all(_all_are(int, ids) for ids in value):
            raise _no_prompt()
    return value


def _all_are(kind: type, values: list[Any]) -> bool:
    return set(map(type, values)) <= {kind}


def _no_prompt() -> PydanticCustomError:
    return PydanticCustomError(
        "prompt", "must be text, a list of texts, of token ids, or of lists of token ids"
    )


def _bias(value: Any) -> dict[str, float]:
    """The first wrong entry, not a list of them."""
    if not isinstance(value, dict):
        raise PydanticCustomError("bias", "must be an object: token id to number")
    given = {key: bias for key, bias in value.items() if bias is not None}
    for key, bias in given.items():
        if type(bias) not in (int, float) or abs(bias) > MAX_FLOAT:
            raise PydanticCustomError(
                "bias",
                "of {key} must be a finite number, not {given}",
                {"key": shown(key), "given": shown(bias)},
            )
    return {key: float(bias) for key, bias in given.items()}


LogitBias = Annotated[
    dict[str, float], PlainValidator(_bias, json_schema_input_type=dict[str, float])
]
PromptBody = Annotated[_PromptBody, PlainValidator(_prompt, json_schema_input_type=_PromptBody)]
