"""Protobuf messages that nobody meant: fields of every type, at their edges, nested, repeated."""

from __future__ import annotations

import math
import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tests.fuzz.values import text

Wire = TypeVar("Wire", bound=Message)

_UNSIGNED = (0, 1, 2, 5, 287, 288, 65535, 2**31 - 1, 2**31, 2**32 - 1)
_EDGES = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2, 288, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: _UNSIGNED,
    FieldDescriptor.CPPTYPE_UINT64: (*_UNSIGNED, 2**63, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, -0.0, 1.0, 0.5, -1.0, 1e-30, 1e38, math.nan),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, 1.0, 0.5, -1.0, 1e-310, 1e308, math.inf, -math.inf),
}  # fmt: skip


def message(rng: random.Random, kind: type[Wire], **given: Any) -> Wire:
    """A message with random fields, `given` ones as they are; at times spoilt as bytes."""
    made = kind()
    _fill(rng, made, depth=4)
    for name, value in given.items():
        made.ClearField(name)
        if isinstance(value, Message):
            getattr(made, name).CopyFrom(value)
        else:
            setattr(made, name, value)
    return _spoilt(rng, made) if rng.random() < 0.1 else made


def _fill(rng: random.Random, made: Message, depth: int) -> None:
    for field in made.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            continue
        if field.is_repeated:
            _fill_repeated(rng, made, field, depth)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if depth:
                getattr(made, field.name).SetInParent()
                _fill(rng, getattr(made, field.name), depth - 1)
        else:
            setattr(made, field.name, _value(rng, field))


def _fill_repeated(rng: random.Random, made: Message, field: FieldDescriptor, depth: int) -> None:
    number = rng.choice((0, 1, 1, 2, 5, 40))
    values = getattr(made, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value_field = field.message_type.fields_by_name["value"]
        for _ in range(number):
            key = _value(rng, field.message_type.fields_by_name["key"])
            if value_field.message_type is None:
                values[key] = _value(rng, value_field)
            elif depth:
                _fill(rng, values[key], depth - 1)
    elif field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        values.extend(_value(rng, field) for _ in range(number))
    elif depth:
        for _ in range(number):
            _fill(rng, values.add(), depth - 1)


def _value(rng: random.Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 99, -1))
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 3, 4, 64)))
        case FieldDescriptor.CPPTYPE_STRING:
            return text(rng).encode("utf-8", "replace").decode()
    if rng.random() < 0.5:
        return _small(rng, field)
    return rng.choice(_EDGES[field.cpp_type])


def _small(rng: random.Random, field: FieldDescriptor) -> int | float:
    """What a peer would really send: only such values get past the first checks."""
    return rng.randrange(40) if field.cpp_type < FieldDescriptor.CPPTYPE_DOUBLE else rng.random()


def _spoilt(rng: random.Random, made: Wire) -> Wire:
    """The message after a few bytes changed, where it still is one."""
    data = bytearray(made.SerializeToString())
    for _ in range(rng.randint(1, 4) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        return type(made).FromString(bytes(data))
    except DecodeError:
        return made
