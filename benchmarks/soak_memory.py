"""Resident memory of a service's processes over time, and how much it grows (see `soak.py`)."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

PERIOD_S = 5.0
# What one end of the comparison is the median of: a single sample may catch a passing peak.
WINDOW_S = 60.0


@dataclass(slots=True)
class Process:
    """One process and what it weighed. `samples`: (seconds since the watch began, bytes)."""

    name: str
    samples: list[tuple[float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident bytes a while after a process began, and at its end."""

    name: str
    pid: int
    first: float
    last: float
    seconds: float

    @property
    def share(self) -> float:
        return self.last / self.first - 1


class MemoryWatch:
    """Samples all processes that `processes` finds, on a thread of its own, until it is ended."""

    def __init__(
        self, processes: Callable[[], list[psutil.Process]], name: Callable[[psutil.Process], str]
    ) -> None:
        self._processes = processes
        self._name = name
        self._found: dict[int, Process] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> dict[int, Process]:
        """What was sampled, by process id."""
        self._ended.set()
        self._thread.join(10 * PERIOD_S)
        return self._found

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(PERIOD_S):
            for process in self._processes():
                with suppress(psutil.Error):
                    self._sample(process, time.monotonic() - began_s)

    def _sample(self, process: psutil.Process, now_s: float) -> None:
        weight = process.memory_info().rss
        if process.pid not in self._found:
            self._found[process.pid] = Process(self._name(process))
        self._found[process.pid].samples.append((now_s, weight))


def growths(found: dict[int, Process], settle_s: float) -> list[Growth]:
    """Of every process that lived for long enough after its own first `settle_s` seconds."""
    grown = []
    for pid, process in found.items():
        began_s, ended_s = process.samples[0][0], process.samples[-1][0]
        settled_s = began_s + settle_s
        if ended_s - settled_s < 2 * WINDOW_S:
            continue
        first = _median(process.samples, settled_s, settled_s + WINDOW_S)
        last = _median(process.samples, ended_s - WINDOW_S, ended_s)
        grown.append(Growth(process.name, pid, first, last, ended_s - settled_s))
    return sorted(grown, key=lambda each: -each.last)


def _median(samples: Sequence[tuple[float, int]], start_s: float, end_s: float) -> float:
    return statistics.median(weight for at_s, weight in samples if start_s <= at_s <= end_s)
