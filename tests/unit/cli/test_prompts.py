"""Prompt files: what they may hold, and that a damaged one is refused by name."""

from __future__ import annotations

import gzip

import pytest

from specdec.cli.prompts import read_prompts
from specdec.errors import InvalidRequestError


def test_texts_and_json_lines_may_be_mixed(tmp_path):
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'one\n\n{"turns": ["two", "three"]}\n{"prompt": "four"}\n'))
    assert read_prompts(path) == ["one", "two", "four"]
    assert read_prompts(path, limit=2) == ["one", "two"]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('{"prompt": ' + "9" * 5000 + "}", id="more digits than Python reads"),
        pytest.param('{"prompt": ' + "[" * 100_000, id="deeper than Python reads"),
        pytest.param('{"prompt": "cut', id="cut short"),
    ],
)
def test_a_line_that_is_no_json_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"fine\n{line}\n")
    with pytest.raises(InvalidRequestError, match=r"prompts.jsonl:2: not JSON"):
        read_prompts(path)


def test_damaged_archives_are_refused(tmp_path):
    path = tmp_path / "prompts.gz"
    whole = gzip.compress(bytes(range(32, 127)) * 20)
    flipped = bytes([*whole[:12], whole[12] ^ 0xFF, *whole[13:]])
    for damaged in (b"", b"no archive", whole[:-9], flipped):
        path.write_bytes(damaged)
        with pytest.raises(InvalidRequestError, match=r"cannot read|holds no prompt"):
            read_prompts(path)
