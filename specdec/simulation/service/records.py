"""What a simulated service did: requests' times, and steps by the second."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Totals:
    """Counts of steps. wait_s: of steps for drafts, of step_s in all."""

    num_steps: int = 0
    step_s: float = 0.0
    wait_s: float = 0.0
    num_committed: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_decodes: int = 0
    num_late: int = 0
    num_queued: int = 0

    def add(self, other: Totals) -> None:
        """Count what `other` counted, too."""
        for member in fields(self):
            mine = getattr(self, member.name)
            setattr(self, member.name, mine + getattr(other, member.name))


@dataclass(frozen=True, slots=True)
class Replicas:
    """Those that serve at a moment, and so far: cost (GPU-seconds) since the moment before, and
    decisions for another count."""

    time_s: float
    num_targets: int
    num_drafts: int
    cost_s: float
    num_target_changes: int
    num_draft_changes: int


@dataclass(slots=True)
class Record:
    """Of one stretch of time: first tokens, finished requests and steps that fell into it.

    bin_s: width of the timeline's bins.
    """

    start_s: float
    end_s: float
    bin_s: float = 1.0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    num_arrived: int = 0
    num_finished: int = 0
    num_preempted: int = 0
    num_refused: int = 0
    totals: Totals = field(default_factory=Totals)
    bins: dict[int, Totals] = field(default_factory=dict)
    scaled: list[Replicas] = field(default_factory=list)

    def covers(self, now_s: float) -> bool:
        return self.start_s <= now_s < self.end_s

    def first_token(self, now_s: float, arrived_s: float) -> None:
        """A request got its first token."""
        if self.covers(now_s):
            self.ttft_s.append(now_s - arrived_s)

    def finished(self, now_s: float, arrived_s: float, first_s: float, num_tokens: int) -> None:
        """A request got its last token."""
        if self.covers(now_s):
            self.num_finished += 1
            self.e2e_s.append(now_s - arrived_s)
            if num_tokens > 1:
                self.tpot_s.append((now_s - first_s) / (num_tokens - 1))

    def replicas(self, seen: Replicas) -> None:
        """Where the service scales: what it has at a moment."""
        if self.covers(seen.time_s):
            self.scaled.append(seen)

    def step(self, now_s: float, counts: Totals) -> None:
        """A step ended."""
        if self.covers(now_s):
            self.totals.add(counts)
            self.bins.setdefault(int((now_s - self.start_s) / self.bin_s), Totals()).add(counts)

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def goodput_tokens_per_s(self) -> float:
        return self.totals.num_committed / self.seconds


def percentiles(values: list[float], shares: tuple[float, ...] = (50, 90, 99)) -> Floats | None:
    """Of `values`, None where there are none."""
    return np.percentile(values, shares) if values else None
