"""A long time of many replicas, estimated from short windows of a few.

The time is cut into equal strata with one window in each, at a random place. Sampled replicas get
their share of the arrivals, and as many drafts as belong to them. What a window starts from is not
known, so it begins empty and early: its warm-up does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np

from specdec.errors import ConfigError
from specdec.simulation.policies import PolicySetting
from specdec.simulation.service.fleet import Fleet, Service, Stretch
from specdec.simulation.service.records import Record

MAX_SAMPLED_TARGETS = 4
TIMELINE_BINS = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """num_windows of window_s each, spread over duration_s."""

    duration_s: float
    num_windows: int
    window_s: float
    warm_up_s: float

    @property
    def is_whole(self) -> bool:
        """Whether the one window is the whole duration, so that nothing is estimated."""
        return self.num_windows == 1 and self.window_s >= self.duration_s


@dataclass(frozen=True, slots=True)
class SampledRun:
    """Records of the windows, in order, of `num_targets` sampled replicas of `fleet_size`.

    standard_error: of the goodput's mean over the windows, as a part of it; 0 where nothing was
    sampled, NaN for a single window of a longer time.
    """

    records: SequenceOf[Record]
    num_targets: int
    fleet_size: int
    standard_error: float

    @property
    def goodput_tokens_per_s(self) -> float:
        """Of the whole fleet."""
        mean = float(np.mean([record.goodput_tokens_per_s for record in self.records]))
        return mean * self.fleet_size / self.num_targets


def windows(sample: Sample, seed: int) -> list[Stretch]:
    """One for each stratum. Raises ConfigError (field `sample`) where they do not fit."""
    stratum_s = sample.duration_s / sample.num_windows
    if sample.window_s > stratum_s:
        raise ConfigError(
            f"sample: {sample.num_windows} windows of {sample.window_s:g} s do not fit into "
            f"{sample.duration_s:g} s",
            field="sample",
        )
    places = np.random.default_rng(seed).random(sample.num_windows)
    starts = (np.arange(sample.num_windows) + 0.0) * stratum_s
    starts += places * (stratum_s - sample.window_s)
    return [
        Stretch(start - sample.warm_up_s, sample.warm_up_s, start + sample.window_s)
        for start in starts.tolist()
    ]


def run_sampled(
    service: Service,
    setting: PolicySetting,
    sample: Sample,
    seed: int,
    on_window: Callable[[], None] = lambda: None,
) -> SampledRun:
    """Simulate every window. All policies meet the same windows and the same arrivals."""
    part, num_targets = _part(service, sample)
    share = num_targets / service.num_targets
    num_bins = TIMELINE_BINS if sample.is_whole else 1
    records = []
    for number, stretch in enumerate(windows(sample, seed)):
        records.append(Fleet(part, setting, stretch, seed + number, share, num_bins).run())
        on_window()
    goodputs = [record.goodput_tokens_per_s for record in records]
    return SampledRun(
        records, num_targets, service.num_targets, 0.0 if sample.is_whole else relative_se(goodputs)
    )


def _part(service: Service, sample: Sample) -> tuple[Service, int]:
    """The replicas that are simulated: all, or where windows are sampled a few, with their drafts:
    as many targets for each draft as in the whole service."""
    if sample.is_whole or service.num_targets <= MAX_SAMPLED_TARGETS:
        return service, service.num_targets
    num_targets, num_drafts = MAX_SAMPLED_TARGETS, 0
    if service.num_drafts:
        per_draft = max(round(service.num_targets / service.num_drafts), 1)
        num_drafts = max(round(num_targets / per_draft), 1)
        num_targets = min(num_drafts * per_draft, service.num_targets)
    outages = tuple(outage for outage in service.outages if outage[0] < num_drafts)
    part = replace(service, num_targets=num_targets, num_drafts=num_drafts, outages=outages)
    return part, num_targets


def relative_se(values: SequenceOf[float]) -> float:
    """Standard error of the mean of one value from each stratum, as a part of the mean.

    From the differences of neighbours, which leaves out what the strata differ by on purpose.
    """
    if len(values) < 2 or not any(values):
        return math.nan
    differences = np.diff(values)
    variance = float((differences**2).mean()) / 2
    return math.sqrt(variance / len(values)) / float(np.mean(values))
