"""What the pages print under a command is what the command prints.

Virtual time and closed formulas give the same figures on every machine. Rows of fixed rules are
compared to the last digit. The controller is tuned now and then: its speed may differ by 2 % from
the page, and how it got there is not compared. A larger change means that the page, and what it
concludes, must be read again.
"""

from __future__ import annotations

import math
from functools import cache

import pytest

from tests.command_line import Command
from tests.documents import REPOSITORY, arguments, printed

ENTRIES = [
    entry
    for name in ("rules-of-thumb.md", "tuning.md")
    for entry in printed(REPOSITORY / "docs" / name)
    if arguments(entry.command)[1] in ("theory", "simulate", "plan")
    # Takes minutes; its figures have tests of their own.
    and "--reproduce" not in entry.command
]
# `tokens/s` and `over off` follow the policy's name.
SPEEDS = slice(1, 3)
TOLERANCE = 0.02


@cache
def output(command: str) -> tuple[str, ...]:
    return tuple(Command()(*arguments(command)[1:]).stdout.splitlines())


def same(shown: str, line: str) -> bool:
    if not shown.startswith("adaptive "):
        return shown.rstrip() == line.rstrip()
    if not line.startswith("adaptive "):
        return False
    pairs = zip(shown.split()[SPEEDS], line.split()[SPEEDS], strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=TOLERANCE) for a, b in pairs)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.page}: {entry.command}")
def test_the_command_prints_what_the_page_shows(entry):
    remaining = iter(output(entry.command))
    for shown in entry.lines:
        if shown != "...":
            assert any(same(shown, line) for line in remaining), shown


def test_there_is_something_to_compare():
    assert len(ENTRIES) > 15
    assert all(entry.lines for entry in ENTRIES)


def test_other_figures_are_not_the_same():
    row = "{}     5638.3    1.4982    3.00       0.422                   0.0"
    assert same(row.format("fixed:3 "), row.format("fixed:3 "))
    assert not same(row.format("fixed:3 "), row.format("fixed:3 ").replace("1.4982", "1.4983"))
    assert same(row.format("adaptive"), row.format("adaptive").replace("5638.3", "5700.1"))
    assert not same(row.format("adaptive"), row.format("adaptive").replace("1.4982", "1.5382"))
    assert not same(row.format("adaptive"), row.format("fixed:3 "))
