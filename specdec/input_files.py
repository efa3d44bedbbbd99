"""Files that people name, read so that reading ends: regular files, in lines of bounded length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

# A recorded request of 100 000 tokens takes about one of these.
MAX_LINE_CHARS = 16 * 2**20


def check_regular(path: Path) -> None:
    """Raises OSError for what is there and no regular file: a device may never end, and a pipe
    waits for somebody who writes."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise OSError(f"it is {kind}, not a regular file")


def bounded_lines(file: TextIO, max_chars: int = MAX_LINE_CHARS) -> Iterator[str]:
    """The lines of an open text, each with its end. Raises ValueError, naming the line, where one
    is longer than `max_chars`."""
    number = 0
    while line := file.readline(max_chars + 1):
        number += 1
        if len(line) > max_chars:
            raise ValueError(f"line {number} is longer than {max_chars} characters")
        yield line
