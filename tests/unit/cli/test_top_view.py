"""Frames of `specdec top`, printed and read as text."""

from __future__ import annotations

from copy import deepcopy
from io import StringIO

import pytest
from rich.console import Console

from specdec.cli.top_rates import History
from specdec.cli.top_source import Silence
from specdec.cli.top_view import bar, frame, sparkline
from tests.unit.cli.readings import two_readings

URL = "http://localhost:8000"


def printed(history: History, width=80, height=24, silence=None) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, emoji=False, highlight=False)
    console.print(frame(URL, history, silence, height))
    return console.file.getvalue().splitlines()


@pytest.fixture
def history() -> History:
    found = History()
    for reading in two_readings():
        found.add(reading)
    return found


def test_a_frame_tells_what_happened(history):
    lines = printed(history)
    text = "\n".join(lines)
    for expected in (
        "8.5 out",
        "requests/s 2.0",
        "accepted 45%",
        "length 2.80",
        "tokens/step 2.12",
    ):
        assert expected in text
    assert [line for line in lines if line.startswith("  1  ████████████")]
    assert [line for line in lines if "red" in line and "4.0" in line and "45%" in line]
    (draft,) = [line for line in lines if line.startswith("draft#1")]
    assert draft.split()[1] == "ready"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12)])
def test_it_fits_the_terminal_whatever_the_fleet(history, width, height):
    reading = history.readings[-1]
    for part in ("targets", "drafts", "drafters"):
        reading[part] = [deepcopy(reading[part][0]) for _ in range(30)]
    lines = printed(history, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if width >= 80:
        assert "target " in "\n".join(lines)
        assert "(+" in "\n".join(lines)


def test_before_the_second_reading_what_is_known_is_shown():
    history = History()
    history.add(two_readings()[0])
    lines = printed(history)
    assert "demo" in lines[0]
    assert [line for line in lines if "- out" in line]
    assert [line for line in lines if line.startswith("one ")]


def test_unknown_numbers_are_no_zeros(history):
    reading = history.readings[-1]
    reading["now"] = dict.fromkeys(reading["now"])
    reading["drafts"] = [{**reading["drafts"][0], "num_sessions": None, "round_trip_s": None}]
    lines = printed(history)
    (draft,) = [line for line in lines if line.startswith("draft#1")]
    assert draft.split()[2] == draft.split()[-1] == "-"


def test_silence_is_told_since_when(history):
    (title, *_) = printed(history, silence=Silence(0.0, "refused"))
    assert "no answer since" in title


def test_a_guard_that_turned_speculation_off_is_told_with_its_reason(history):
    reading = history.readings[-1]
    reading["totals"]["guard_trips"]["slower_than_baseline"] += 2
    reading["targets"][0].update(phase="guard_off", guard_reason="slower_than_baseline")
    text = "\n".join(printed(history))
    assert "guard turned speculation off: 2 x slower" in text
    assert "guard_off" in text


def test_names_of_others_are_no_markup(history):
    reading = history.readings[-1]
    reading["drafters"][0]["name"] = "[bold]x[/nothing]"
    assert [line for line in printed(history) if line.startswith("[bold]x[/nothing]")]


@pytest.mark.parametrize(
    ("points", "expected"),
    [([], ""), ([0, 0], "▁▁"), ([0, 7], "▁█"), ([1, None, 2], "▅ █"), ([3.5, 7], "▅█")],
)
def test_sparklines(points, expected):
    assert sparkline(points) == expected


@pytest.mark.parametrize(
    ("share", "cells"), [(0, ""), (1, "█" * 16), (0.5, "█" * 8), (1 / 32, "▌"), (2, "█" * 16)]
)
def test_bars(share, cells):
    assert bar(share) == cells
