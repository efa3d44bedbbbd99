"""Tables as lines of text that no terminal cuts: they may be piped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for the headings and one for each row: the first column to the left, all others to
    the right, each as wide as its widest cell."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
