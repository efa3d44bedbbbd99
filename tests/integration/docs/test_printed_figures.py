"""What the pages print under a command is what the command prints.

Virtual time and closed formulas give the same figures on every machine. Where a change of the
controller or the simulator moves them, the page and what it concludes must be read again.
"""

from __future__ import annotations

import pytest

from tests.command_line import Command
from tests.documents import REPOSITORY, arguments, printed

ENTRIES = [
    entry
    for name in ("rules-of-thumb.md", "tuning.md")
    for entry in printed(REPOSITORY / "docs" / name)
    if arguments(entry.command)[1] in ("theory", "simulate", "plan")
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.command)
def test_the_command_prints_what_the_page_shows(entry):
    output = Command()(*arguments(entry.command)[1:]).stdout.splitlines()
    remaining = iter(line.rstrip() for line in output)
    for line in entry.lines:
        if line != "...":
            assert line.rstrip() in remaining, line


def test_there_is_something_to_compare():
    assert len(ENTRIES) > 15
    assert all(entry.lines for entry in ENTRIES)
