"""What all benchmarks share: paired ratios with their spread, verdicts, the machine's description.

Both sides of a comparison run in turn, prompt by prompt, and change who goes first: what slows the
machine down slows both, and the ratio stands.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Run:
    """One side's work on one prompt. `first_s`: seconds to the first token; `cpu_s`: seconds that
    this process computed, on all threads, which other processes hardly change."""

    num_tokens: int
    seconds: float
    first_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


class Stopwatch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started_s

    def run(self, num_tokens: int, first_s: float = 0.0) -> Run:
        cpu_s = time.process_time() - self._started_cpu_s
        return Run(num_tokens, self.seconds, first_s, cpu_s)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one side is, over all pairs: tokens per second of the sums, with the
    interval that holds 90 % of resampled sets of pairs."""

    value: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.value:5.2f}x (90 % {self.low:.2f}-{self.high:.2f}, n={self.num_pairs})"


def total_rate(runs: Sequence[Run]) -> float:
    """Tokens per second over all runs together."""
    return sum(run.num_tokens for run in runs) / sum(run.seconds for run in runs)


def speed_ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> Ratio:
    """Ours over theirs; run i of both is the same prompt."""
    pairs = list(zip(ours, theirs, strict=True))
    draws = random.Random(0)

    def resampled() -> float:
        some = draws.choices(pairs, k=len(pairs))
        return total_rate([a for a, _ in some]) / total_rate([b for _, b in some])

    values = sorted(resampled() for _ in range(BOOTSTRAPS))
    return Ratio(
        total_rate(ours) / total_rate(theirs),
        values[BOOTSTRAPS // 20],
        values[-BOOTSTRAPS // 20],
        len(pairs),
    )


def cpu_ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """`speed_ratio` in CPU seconds instead of seconds: what a quiet machine would roughly show."""
    mine = sum(run.num_tokens for run in ours) / sum(run.cpu_s for run in ours)
    return mine * sum(run.cpu_s for run in theirs) / sum(run.num_tokens for run in theirs)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between ranks, as numpy's."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def verdict(name: str, value: float, aim: float, at_least: bool = True) -> str:
    """One line: the figure, its aim, and whether it is reached."""
    reached = value >= aim if at_least else value <= aim
    sign = ">=" if at_least else "<="
    return f"  {'reached ' if reached else 'MISSED  '} {name}: {value:.3g} (aim {sign} {aim:g})"


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared pages counted by their share where the kernel tells."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "Pss:"), 0)


def machine() -> str:
    """The machine in one line, for README."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"machine: {_cpu_name()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"torch {torch.__version__} with {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at start"
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
