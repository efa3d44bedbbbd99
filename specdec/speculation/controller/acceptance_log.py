"""Saved acceptance statistics: JSON lines, one record for each class and period.

Append-only and bounded; several engines may write to one file. Counts and times only: no text, no
tokens, no tenant. docs/drift.md describes the fields.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from specdec.errors import ConfigError
from specdec.input_files import bounded_lines, check_regular
from specdec.params import shown

FORMAT = 1
MAX_POSITIONS = 128
MAX_BYTES = 64 * 2**20
MAX_LABEL = 64
MAX_NUMBER = 2**53
MAX_PERIOD_S = 32 * 86_400.0
YEARS = range(1970, 3000)


@dataclass(frozen=True, slots=True)
class AcceptanceRecord:
    """What one class did in one period.

    `start_s`: when the period began, seconds since 1970; `seconds`: how much of it was observed.
    `drafter` is None for rounds without draft tokens. A round is one sequence's part in one engine
    step. By draft position, from the first: `drafted` rounds had a draft token there, `trials` of
    them were decided (all before it were accepted), `successes` accepted it. `tokens` were
    committed, recovered and bonus tokens included; `target_seconds` is the rounds' share of the
    target's time.
    """

    start_s: float
    seconds: float
    drafter: str | None
    label: str
    rounds: int
    drafted: tuple[int, ...]
    trials: tuple[int, ...]
    successes: tuple[int, ...]
    tokens: int
    target_seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """A log's records in the order of its lines. `torn_lines` (from 1) are ends of a write that a
    crash cut short; they hold nothing."""

    records: tuple[AcceptanceRecord, ...]
    torn_lines: tuple[int, ...]


class AcceptanceLog:
    """Appends records to a file. Where it would grow beyond `max_bytes`, it becomes `FILE.1`, in
    place of an older one, and a new file begins."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes

    @property
    def previous(self) -> Path:
        """Where older records go."""
        return self.path.with_name(f"{self.path.name}.1")

    def append(self, records: Iterable[AcceptanceRecord]) -> None:
        """Write all of `records` or, where the disk refuses, none. Raises OSError."""
        lines = "".join(f"{_to_json(record)}\n" for record in records).encode()
        while lines:
            with self._locked() as file:
                size = file.seek(0, os.SEEK_END)
                if size == 0 or size + len(lines) < self._max_bytes:
                    _append(file, size, lines)
                    return
                self.path.replace(self.previous)

    def touch(self) -> None:
        """Make sure that the file can be written, and is one: a device or a pipe may never end.
        Raises OSError."""
        if self.path.exists() and not self.path.is_file():
            raise OSError(f"{self.path} is no regular file")
        self._locked().close()

    def read(self) -> Reading:
        """All that is kept, oldest first; nothing where there is no file. Raises ConfigError as
        `read_log` does."""
        readings = [read_log(path) for path in (self.previous, self.path) if path.exists()]
        return Reading(
            tuple(record for reading in readings for record in reading.records),
            tuple(line for reading in readings for line in reading.torn_lines),
        )

    def _locked(self) -> FileIO:
        """The file, locked against other writers until it is closed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
            fcntl.flock(file, fcntl.LOCK_EX)
            if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                return file
            file.close()  # another writer has just moved it away


def merge(records: Iterable[AcceptanceRecord]) -> list[AcceptanceRecord]:
    """One record per class and period start, in order of time: engines that share a log, and runs
    that share an hour, count together."""
    merged: dict[tuple[float, str | None, str], AcceptanceRecord] = {}
    for record in records:
        key = (record.start_s, record.drafter, record.label)
        merged[key] = _sum(merged[key], record) if key in merged else record
    return sorted(merged.values(), key=lambda record: record.start_s)


def _sum(one: AcceptanceRecord, other: AcceptanceRecord) -> AcceptanceRecord:
    return AcceptanceRecord(
        start_s=one.start_s,
        seconds=max(one.seconds, other.seconds),
        drafter=one.drafter,
        label=one.label,
        rounds=one.rounds + other.rounds,
        drafted=add_counts(one.drafted, other.drafted),
        trials=add_counts(one.trials, other.trials),
        successes=add_counts(one.successes, other.successes),
        tokens=one.tokens + other.tokens,
        target_seconds=one.target_seconds + other.target_seconds,
    )


def add_counts(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Sum by position; the shorter one has none further on."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    return tuple(a + b for a, b in zip(long, short, strict=False)) + long[len(short) :]


def _append(file: FileIO, size: int, lines: bytes) -> None:
    """One write; what a crash left of an earlier one stays on a line of its own."""
    if size > 0:
        file.seek(size - 1)
        lines = lines if file.read(1) == b"\n" else b"\n" + lines
    try:
        num_written = file.write(lines)
        if num_written != len(lines):
            raise OSError(f"{file.name}: wrote {num_written} of {len(lines)} bytes")
    except OSError:
        file.truncate(size)
        raise


def read_log(path: Path) -> Reading:
    """Read one file. Raises ConfigError, naming file and line, where a line is no record."""
    records, torn = [], []
    try:
        check_regular(path)
        with path.open(encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in bounded_lines(file)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", field="file") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if line.startswith('{"format"') and not line.endswith("}"):
            torn.append(number)
            continue
        try:
            records.append(_from_json(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}", field="file") from error
    return Reading(tuple(records), tuple(torn))


def _to_json(record: AcceptanceRecord) -> str:
    start = datetime.fromtimestamp(record.start_s, UTC).isoformat(timespec="seconds")
    return json.dumps(
        {
            "format": FORMAT,
            "start": start.replace("+00:00", "Z"),
            "seconds": round(record.seconds, 3),
            "drafter": record.drafter,
            "class": record.label,
            "rounds": record.rounds,
            "drafted": record.drafted,
            "trials": record.trials,
            "successes": record.successes,
            "tokens": record.tokens,
            "target_seconds": round(record.target_seconds, 6),
        }
    )


def _from_json(line: str) -> AcceptanceRecord:
    """Raises ValueError, naming the field."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    if value.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT}, not {shown(value.get('format'))}")
    record = AcceptanceRecord(
        start_s=_time(value.get("start")),
        seconds=_seconds(value, "seconds", MAX_PERIOD_S),
        drafter=None if value.get("drafter") is None else _name(value, "drafter"),
        label=_name(value, "class"),
        rounds=_count(value.get("rounds"), "rounds"),
        drafted=_counts(value, "drafted"),
        trials=_counts(value, "trials"),
        successes=_counts(value, "successes"),
        tokens=_count(value.get("tokens"), "tokens"),
        target_seconds=_seconds(value, "target_seconds"),
    )
    _check_counts(record)
    return record


def _check_counts(record: AcceptanceRecord) -> None:
    """A round can accept a position only where it was tried, and try it only where it was drafted
    and the one before it accepted."""
    if not len(record.drafted) == len(record.trials) == len(record.successes):
        raise ValueError("drafted, trials and successes must be equally long")
    if (record.drafter is None) != (not record.drafted):
        raise ValueError("drafted must be empty exactly where drafter is null")
    before = record.rounds
    for drafted, trials, successes in zip(
        record.drafted, record.trials, record.successes, strict=True
    ):
        if not successes <= trials <= min(before, drafted) or drafted > record.rounds:
            raise ValueError(
                "each position needs successes <= trials <= drafted <= rounds, and no more trials "
                "than the position before it has successes"
            )
        before = successes


def _time(value: Any) -> float:
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        time = datetime.min
    if time.year not in YEARS:
        raise ValueError(f"start must be a time such as 2026-11-29T13:00:00Z, not {shown(value)}")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _seconds(value: dict[str, Any], name: str, most: float = MAX_NUMBER) -> float:
    seconds = value.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"{name} must be a number, not {shown(seconds)}")
    if not 0 <= seconds <= most:
        raise ValueError(f"{name} must be from 0 to {most:g}, not {shown(seconds)}")
    return float(seconds)


def _name(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= MAX_LABEL:
        raise ValueError(f"{name} must be a text of 1 to {MAX_LABEL} characters, not {shown(text)}")
    return text


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} must be a whole number from 0, not {shown(value)}")
    return value


def _counts(value: dict[str, Any], name: str) -> tuple[int, ...]:
    counts = value.get(name)
    if not isinstance(counts, list) or len(counts) > MAX_POSITIONS:
        raise ValueError(f"{name} must be a list of at most {MAX_POSITIONS} whole numbers")
    return tuple(_count(each, name) for each in counts)
