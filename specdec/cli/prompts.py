"""Prompts from a file: one text per line, or JSON lines with `prompt` or `turns`; also .gz."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from specdec.errors import InvalidRequestError


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """The prompts of a file in order, at most `limit`; of a conversation, its first turn.

    A line that starts with { is JSON. Empty lines are skipped. Raises InvalidRequestError, naming
    the line, where a line cannot be used, and where nothing is left.
    """
    prompts: list[str] = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if limit is not None and len(prompts) >= limit:
            break
        if line.strip():
            prompts.append(_parse(line, f"{path}:{number}"))
    if not prompts:
        raise InvalidRequestError(f"{path}: holds no prompt", field="file")
    return prompts


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidRequestError(f"cannot read {path}: {error}", field="file") from None


def _parse(line: str, where: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{where}: not JSON: {error}", field="file") from None
    turns = record.get("turns")
    prompt = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(prompt, str) or not prompt:
        raise InvalidRequestError(
            f"{where}: needs a text `prompt`, or `turns` with a text first", field="file"
        )
    return prompt
