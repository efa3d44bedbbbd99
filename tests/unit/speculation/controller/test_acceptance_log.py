"""Saved acceptance statistics: what is written is read, whole lines only, within the bound."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import FileIO

import pytest

from specdec.errors import ConfigError
from specdec.speculation.controller import acceptance_log
from specdec.speculation.controller.acceptance_log import (
    AcceptanceLog,
    AcceptanceRecord,
    read_log,
)

RECORD = AcceptanceRecord(
    start_s=1_796_043_600.0,
    seconds=3600.0,
    drafter="draft",
    label="greedy",
    rounds=10,
    drafted=(10, 8, 8),
    trials=(10, 6, 3),
    successes=(7, 3, 1),
    tokens=21,
    target_seconds=0.25,
)
WITHOUT_DRAFT = replace(RECORD, drafter=None, drafted=(), trials=(), successes=(), tokens=10)


def test_what_is_appended_is_read(tmp_path):
    log = AcceptanceLog(tmp_path / "new" / "acceptance.jsonl")
    log.append([RECORD, WITHOUT_DRAFT])
    log.append([])
    log.append([RECORD])
    assert log.read().records == (RECORD, WITHOUT_DRAFT, RECORD)
    assert read_log(log.path).torn_lines == ()


def test_a_line_says_when_in_words(tmp_path):
    log = AcceptanceLog(tmp_path / "acceptance.jsonl")
    log.append([RECORD])
    line = json.loads(log.path.read_text())
    assert line["start"] == "2026-11-30T13:00:00Z"  # 1,796,043,600 s after 1970
    assert line["class"] == "greedy"


def test_a_full_file_makes_way_and_one_old_file_stays(tmp_path):
    path = tmp_path / "acceptance.jsonl"
    AcceptanceLog(path).append([RECORD])
    size = path.stat().st_size
    log = AcceptanceLog(path, max_bytes=3 * size + 1)
    for rounds in range(11, 21):
        log.append([replace(RECORD, rounds=rounds)])
        assert path.stat().st_size <= 3 * size
    # One and ten records in files of three: 3 + 3 + 3 + 2, and the last two files are kept.
    assert [record.rounds for record in log.read().records] == [16, 17, 18, 19, 20]
    assert sorted(os.listdir(tmp_path)) == ["acceptance.jsonl", "acceptance.jsonl.1"]


def test_several_writers_lose_nothing_when_files_change(tmp_path):
    path = tmp_path / "acceptance.jsonl"
    AcceptanceLog(path).append([RECORD])
    bound = 60 * path.stat().st_size

    def write(writer: int) -> None:
        log = AcceptanceLog(path, max_bytes=bound)
        for _ in range(25):
            log.append([replace(RECORD, label=f"writer {writer}")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    labels = [record.label for record in AcceptanceLog(path).read().records]
    assert sorted(labels) == ["greedy"] + [f"writer {n}" for n in range(4) for _ in range(25)]


def test_what_a_crash_cut_short_costs_one_line(tmp_path):
    log = AcceptanceLog(tmp_path / "acceptance.jsonl")
    log.append([RECORD, RECORD])
    log.path.write_bytes(log.path.read_bytes()[:-20])
    assert read_log(log.path).torn_lines == (2,)
    log.append([WITHOUT_DRAFT])
    reading = log.read()
    assert reading.records == (RECORD, WITHOUT_DRAFT)
    assert reading.torn_lines == (2,)


class FullDisk(FileIO):
    """Takes seven bytes of a write, as a disk that fills up does."""

    def write(self, data):
        return super().write(data[:7])


def test_a_refused_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    log = AcceptanceLog(tmp_path / "acceptance.jsonl")
    log.append([RECORD])
    before = log.path.read_bytes()
    monkeypatch.setattr(acceptance_log, "FileIO", FullDisk)
    with pytest.raises(OSError, match="wrote 7 of"):
        log.append([RECORD])
    assert log.path.read_bytes() == before


def line(**changes: object) -> str:
    value = {
        "format": 1,
        "start": "2026-11-30T13:00:00Z",
        "seconds": 3600,
        "drafter": "draft",
        "class": "greedy",
        "rounds": 10,
        "drafted": [10, 8],
        "trials": [10, 6],
        "successes": [7, 3],
        "tokens": 21,
        "target_seconds": 0.25,
    }
    return json.dumps({**value, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a": 1}', "format must be 1"),
        (line(format=2), "format must be 1"),
        (line(start="yesterday"), "start must be a time"),
        (line(start=None), "start must be a time"),
        (line(start="9999-12-31T23:00:00Z"), "start must be a time"),
        (line(seconds=3e6), "seconds must be from 0 to 2.7648e+06"),
        (line(seconds=-1), "seconds must be from 0 to"),
        (line(target_seconds="1"), "target_seconds must be a number"),
        (line(target_seconds=float("nan")), "target_seconds must be from 0 to"),
        (line(target_seconds=10**400), "target_seconds must be from 0 to"),
        (line(rounds=10**400), "rounds must be a whole number"),
        ("[" * 100_000, "is not JSON"),
        (line(drafter=7), "drafter must be a text"),
        (line(**{"class": ""}), "class must be a text"),
        (line(rounds=1.5), "rounds must be a whole number"),
        (line(tokens=True), "tokens must be a whole number"),
        (line(trials=[10]), "equally long"),
        (line(trials=[10, -1]), "trials must be a whole number"),
        (line(trials=[10, 8]), "no more trials than the position before it has successes"),
        (line(successes=[11, 3]), "successes <= trials"),
        (line(drafted=[11, 8]), "drafted <= rounds"),
        (line(drafter=None), "drafted must be empty"),
        (line(drafted=[0] * 129), "at most 128"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, text, message):
    path = tmp_path / "acceptance.jsonl"
    path.write_text(f"{line()}\n\n{text}\n")
    with pytest.raises(ConfigError, match=r"acceptance\.jsonl, line 3: ") as caught:
        read_log(path)
    assert message in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.jsonl: cannot be read"):
        read_log(tmp_path / "missing.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary: cannot be read"):
        read_log(tmp_path / "binary")
