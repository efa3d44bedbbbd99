"""README's code blocks, for the tests that hold it to its word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what else stands on the fence line, and its lines."""

    language: str
    tag: str
    code: str


@cache
def text() -> str:
    return (REPOSITORY / "README.md").read_text("utf-8")


def blocks(language: str, tag: str = "") -> list[Block]:
    """The blocks of a language with exactly this tag, in order."""
    found = re.findall(r"^```(\w+) ?(\w*)\n(.*?)^```$", text(), re.MULTILINE | re.DOTALL)
    return [Block(*block) for block in found if block[:2] == (language, tag)]
