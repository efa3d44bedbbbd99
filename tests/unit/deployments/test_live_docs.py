"""docs/metrics.md names every field of /live, and none that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.conftest import REPOSITORY
from tests.unit.cli.readings import two_readings

SECTION = re.compile(r"## The state now, as JSON\n(.*?)\n## ", re.DOTALL)
# Keys that a fleet names, not the interface.
NAMED_BY_THE_FLEET = {"classes": "NAME", "steps_by_k": None, "guard_trips": None}
# What a field may be, and other names in the table.
VALUES = {"ready", "draining"}


def documented() -> set[str]:
    """The names in code in the table's rows, `a.b` and `a[]` as their parts."""
    (section,) = SECTION.findall((REPOSITORY / "docs" / "metrics.md").read_text("utf-8"))
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    parts = {part for name in re.findall(r"`([\w.\[\]]+)`", rows) for part in name.split(".")}
    names = {part.removesuffix("[]") for part in parts} - VALUES - {"NAME"}
    return {name for name in names if not name.startswith("specdec_")}


def fields(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value[:1]:
            yield from fields(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in NAMED_BY_THE_FLEET:
                yield from fields(inner)
            elif NAMED_BY_THE_FLEET[name]:
                for one in inner.values():
                    yield from fields(one)


def test_the_table_has_the_fields_of_a_reading():
    assert documented() == set(fields(two_readings()[1]))
