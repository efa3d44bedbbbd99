"""Prompts from a file: one text per line, or JSON lines with `prompt` or `turns`; also .gz."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from specdec.errors import InvalidRequestError
from specdec.input_files import check_regular

UNNAMED = "prompts"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its category; one without a category belongs to `UNNAMED`."""

    text: str
    category: str = UNNAMED


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """The prompts of a file in order, at most `limit`; of a conversation, its first turn.

    A line that starts with { is JSON. Empty lines are skipped. Raises InvalidRequestError, naming
    the line, where a line cannot be used, and where nothing is left.
    """
    return [prompt.text for prompt in _some(islice(_prompts(path), limit), path)]


def read_categories(path: Path, limit: int | None = None) -> list[Prompt]:
    """As `read_prompts`, but at most `limit` of each category, which JSON lines may name in
    `category`."""
    kept: list[Prompt] = []
    num_kept: Counter[str] = Counter()
    for prompt in _some(_prompts(path), path):
        if limit is None or num_kept[prompt.category] < limit:
            num_kept[prompt.category] += 1
            kept.append(prompt)
    return kept


def _prompts(path: Path) -> Iterator[Prompt]:
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if line.strip():
            yield _parse(line, f"{path}:{number}")


def _some(prompts: Iterable[Prompt], path: Path) -> list[Prompt]:
    found = list(prompts)
    if not found:
        raise InvalidRequestError(f"{path}: holds no prompt", field="file")
    return found


def _read(path: Path) -> str:
    try:
        check_regular(path)
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"cannot read {path}: {error}", field="file") from None


def _parse(line: str, where: str) -> Prompt:
    if not line.startswith("{"):
        return Prompt(line)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where}: not JSON: {error}", field="file") from None
    turns = record.get("turns")
    prompt = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(prompt, str) or not prompt:
        raise InvalidRequestError(
            f"{where}: needs a text `prompt`, or `turns` with a text first", field="file"
        )
    category = record.get("category", UNNAMED)
    if not isinstance(category, str) or not category:
        raise InvalidRequestError(f"{where}: `category` must be a text", field="file")
    return Prompt(prompt, category)
