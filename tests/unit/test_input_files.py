"""What is no regular file is refused before it is read, and no line is read without end."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from specdec.cli.prompts import read_prompts
from specdec.errors import SpecdecError
from specdec.input_files import bounded_lines, check_regular
from specdec.simulation.hardware import read_machine
from specdec.simulation.traces import load_traces
from specdec.speculation.controller.acceptance_log import read_log
from specdec.speculation.controller.profile import read_profiles
from specdec.yaml_files import read_yaml

READERS = {
    "acceptance log": read_log,
    "trace": lambda path: load_traces([path], ("draft",)),
    "profile": read_profiles,
    "machine": read_machine,
    "prompts": read_prompts,
    "config": lambda path: read_yaml(path, "config"),
}


@pytest.fixture(params=["device", "pipe", "folder"])
def endless(request, tmp_path) -> Path:
    if request.param == "device":
        return Path("/dev/zero")
    if request.param == "folder":
        return tmp_path
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_may_never_end_is_refused_by_name(read, endless):
    with pytest.raises(SpecdecError, match="not a regular file") as refused:
        read(endless)
    assert str(endless) in str(refused.value)


def test_a_missing_file_is_left_to_whoever_opens_it(tmp_path):
    check_regular(tmp_path / "absent")


def test_lines_are_those_of_the_file_until_one_is_too_long():
    assert list(bounded_lines(io.StringIO("ab\n\nabc"), max_chars=3)) == ["ab\n", "\n", "abc"]
    lines = bounded_lines(io.StringIO("ab\nabcd"), max_chars=3)
    assert next(lines) == "ab\n"
    with pytest.raises(ValueError, match="line 2 is longer than 3 characters"):
        next(lines)
