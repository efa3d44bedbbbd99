"""Figures of a simulated service: goodput, latencies, K over time, and what a token costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specdec.simulation.service.fleet import Service
from specdec.simulation.service.records import Totals
from specdec.simulation.service.sampling import SampledRun

HOUR_S = 3600.0
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """Of one bin of time. goodput in tokens/s of the whole service; num_queued: mean per target."""

    time_s: float
    goodput: float
    mean_k: float
    num_queued: float


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """Replicas that served, where they came and went; changes: decisions for another count."""

    mean_targets: float
    most_targets: int
    num_target_changes: int
    mean_drafts: float
    most_drafts: int
    num_draft_changes: int
    mean_gpus: float


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """One policy in one service."""

    policy: str
    drafters: tuple[str, ...]
    service: Service
    sampled: SampledRun

    @property
    def totals(self) -> Totals:
        """Steps of all windows, of the sampled targets."""
        total = Totals()
        for record in self.sampled.records:
            total.add(record.totals)
        return total

    @property
    def ttft_s(self) -> list[float]:
        return [value for record in self.sampled.records for value in record.ttft_s]

    @property
    def tpot_s(self) -> list[float]:
        return [value for record in self.sampled.records for value in record.tpot_s]

    @property
    def e2e_s(self) -> list[float]:
        return [value for record in self.sampled.records for value in record.e2e_s]

    def count(self, field: str) -> int:
        """Requests of the sampled targets, all windows together: `num_arrived` and so on."""
        return sum(getattr(record, field) for record in self.sampled.records)

    @property
    def goodput_tokens_per_s(self) -> float:
        return self.sampled.goodput_tokens_per_s

    @property
    def busy_fraction(self) -> float:
        """Of the time of the targets that served."""
        seconds = sum(record.seconds for record in self.sampled.records)
        num_targets = self.scaled.mean_targets if self.scaled else self.sampled.num_targets
        return self.totals.step_s / (seconds * num_targets)

    def timeline(self) -> list[Point]:
        """A point for each bin of a whole run, or for each window of a sampled one."""
        scale = self.sampled.fleet_size / self.sampled.num_targets
        points = []
        for record in self.sampled.records:
            for number, totals in sorted(record.bins.items()):
                time_s = record.start_s + (number + 0.5) * record.bin_s
                points.append(_point(time_s, totals, record.bin_s, scale))
        return points

    @property
    def scaled(self) -> ScaledRun | None:
        """What scaling did; None where replicas stayed."""
        seen = [each for record in self.sampled.records for each in record.scaled]
        if not seen:
            return None
        first, last = seen[0], seen[-1]
        return ScaledRun(
            float(np.mean([each.num_targets for each in seen])),
            max(each.num_targets for each in seen),
            last.num_target_changes - first.num_target_changes,
            float(np.mean([each.num_drafts for each in seen])),
            max(each.num_drafts for each in seen),
            last.num_draft_changes - first.num_draft_changes,
            sum(each.cost_s for each in seen) / sum(r.seconds for r in self.sampled.records),
        )

    def cost_per_million_tokens(
        self, gpu_hour_cost: float, target_gpus: int, draft_gpus: int
    ) -> float:
        """Of all GPUs, busy or not, for the tokens that they committed."""
        scaled = self.scaled
        gpus: float = self.service.num_targets * target_gpus + self.service.num_drafts * draft_gpus
        gpus = gpus if scaled is None else scaled.mean_gpus
        per_second = gpus * gpu_hour_cost / HOUR_S
        return MILLION * per_second / self.goodput_tokens_per_s


def _point(time_s: float, totals: Totals, bin_s: float, scale: float) -> Point:
    return Point(
        time_s,
        scale * totals.num_committed / bin_s,
        totals.num_drafted / max(totals.num_decodes, 1),
        totals.num_queued / max(totals.num_steps, 1),
    )
