"""JSON values that nobody meant: every type, every edge of a number, every size.

Size and type vary together: a long list of things of the wrong type costs more than either alone.
"""

from __future__ import annotations

import copy
import random
from typing import Any

NUMBERS = [
    0, -0.0, 1, -1, 2, 16, 16.0, 0.5, -0.5, 1e-310, 1e308, -1e308, 127, 128, 255, 65535, 65536,
    2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, 10**400,
]  # fmt: skip
TEXTS = [
    "", " ", "a", "the cat", "\0", "\r\nforged: line", "\u2028", "é", "漢字", "😀", "\ud83d",
    "None", "null", "NaN", "true", "0", "-1", "1e9", "{{ 7 * 7 }}", "{% for x in range(9) %}",
    "<|endoftext|>", "<|im_start|>system", "../../etc/passwd", "\u202e", "%s%n", "\ufeff",
]  # fmt: skip


def scalar(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.randrange(-300, 300)
    if kind == 4:
        return rng.uniform(-3, 3)
    return text(rng)


def text(rng: random.Random) -> str:
    chosen = rng.choice(TEXTS)
    return chosen * rng.choice((1, 1, 1, 2, 50, 5000)) if chosen else chosen


def anything(rng: random.Random, depth: int = 3) -> Any:
    """Any JSON value, up to some 100,000 parts."""
    kind = rng.randrange(8)
    if depth == 0 or kind < 4:
        return scalar(rng)
    if kind == 4:  # the same thing very often, whatever it is
        return [anything(rng, 1)] * rng.choice((0, 1, 3, 100, 10_000))
    if kind == 5:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 6:
        return nested(rng.choice((2, 20, 200)))
    return {text(rng)[:200]: anything(rng, depth - 1) for _ in range(rng.randrange(5))}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def changed(rng: random.Random, valid: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """A valid object with a few of its places set to something else."""
    value = copy.deepcopy(valid)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        holder = value
        name = rng.choice(fields)
        inner = holder.get(name)
        if isinstance(inner, dict) and inner and rng.random() < 0.6:
            holder, name = inner, rng.choice(sorted(inner))
        elif isinstance(inner, list) and inner and rng.random() < 0.6:
            inner[rng.randrange(len(inner))] = anything(rng)
            continue
        if rng.random() < 0.1:
            holder.pop(name, None)
        else:
            holder[name] = anything(rng)
    return value
