"""A service: targets, drafts, the requests that come to them, and what became of both.

One run is one stretch of virtual time in which all that arrives is simulated. The day of a large
fleet is sampled by several: see `sampling`.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.errors import ConfigError
from specdec.simulation.costs import StepCost
from specdec.simulation.policies import PolicySetting
from specdec.simulation.requests import SimulatedRequest, endless
from specdec.simulation.service.admission import Limits
from specdec.simulation.service.arrivals import Arrivals
from specdec.simulation.service.drafts import NAME as APART
from specdec.simulation.service.drafts import DraftLink, DraftReplica, Outage
from specdec.simulation.service.events import Events
from specdec.simulation.service.network import Latency
from specdec.simulation.service.records import Record
from specdec.simulation.service.replica import MAX_UNDRAFTED_STEPS, TargetReplica
from specdec.simulation.service.scaling import Autoscaler, Group, Scaling

# A 1B draft on one H100: two operations per weight at 0.7 of 989e12 a second.
DRAFT_PREFILL_S = 3.6e-6


@dataclass(frozen=True, slots=True)
class Service:
    """What is simulated, but for the policy.

    load: arrivals of the whole service, or the number of clients of each target, which send their
        next request when one has ended. num_drafts: drafts apart, 0 for none. outages: of each
        draft, by its number. scaling: None where replicas neither come nor go; else `num_targets`
        and `num_drafts` are the least, and those to begin with.
    """

    requests: SequenceOf[SimulatedRequest]
    drafters: tuple[str, ...]
    cost: StepCost
    load: Arrivals | int
    max_k: int
    num_targets: int = 1
    num_drafts: int = 0
    latency: Latency = Latency(0.0)
    outages: tuple[tuple[int, Outage], ...] = ()
    limits: Limits = Limits()
    max_wait_s: float = 0.25
    draft_prefill_s: float = DRAFT_PREFILL_S
    max_undrafted_steps: int = MAX_UNDRAFTED_STEPS
    scaling: Scaling | None = None

    @property
    def drafts_apart(self) -> bool:
        """Whether there may be any."""
        return self.num_drafts > 0 or (self.scaling is not None and self.scaling.max_drafts > 0)

    def __post_init__(self) -> None:
        if self.scaling is not None:
            self.scaling.check(self.num_targets, self.num_drafts)
            if not isinstance(self.load, Arrivals):
                raise ConfigError(
                    "max_targets: clients of a closed loop stay where they are; needs arrivals",
                    field="max_targets",
                )
        if self.drafts_apart and APART not in self.drafters:
            raise ConfigError(
                f"drafts: {', '.join(self.drafters)} drafts beside the target; only a draft model "
                "runs apart",
                field="drafts",
            )
        for number, _ in self.outages:
            if not 0 <= number < self.num_drafts:
                raise ConfigError(
                    f"draft_down: there is no draft {number}; there are {self.num_drafts}",
                    field="draft_down",
                )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Virtual time from `start_s`, of which all after `warm_up_s` counts, until `end_s`."""

    start_s: float
    warm_up_s: float
    end_s: float


class Fleet:
    """One run. Requests go to the target that has the fewest.

    arrival_share: part of the arrivals that come here. num_bins: of the record's timeline.
    """

    def __init__(
        self,
        service: Service,
        setting: PolicySetting,
        stretch: Stretch,
        seed: int,
        arrival_share: float = 1.0,
        num_bins: int = 1,
    ) -> None:
        self._service = service
        self._stretch = stretch
        self._share = arrival_share
        # Streams of their own, so that what one policy asks of a draft changes no arrival.
        streams = np.random.default_rng(seed).spawn(2)
        self._arrival_random, self._network_random = streams
        self._requests = endless(service.requests, seed)
        self._events = Events(stretch.start_s)
        first_s = stretch.start_s + stretch.warm_up_s
        self.record = Record(first_s, stretch.end_s, (stretch.end_s - first_s) / num_bins)
        self.drafts = [self._draft(number) for number in range(service.num_drafts)]
        self.targets = [self._target(number, setting) for number in range(service.num_targets)]
        if service.scaling is not None:
            self._scale(service.scaling, setting)

    def _scale(self, scaling: Scaling, setting: PolicySetting) -> None:
        service, start_up_s = self._service, scaling.start_up_s
        targets = Group(
            self._events,
            self.targets,
            lambda number: self._target(number, setting),
            (service.num_targets, scaling.max_targets),
            scaling.target_delays,
            start_up_s,
        )
        drafts = Group(
            self._events,
            self.drafts,
            self._draft,
            (service.num_drafts, scaling.max_drafts),
            scaling.draft_delays,
            start_up_s,
        )
        Autoscaler(self._events, scaling, targets, drafts, self.record)

    def _draft(self, number: int) -> DraftReplica:
        outages = [outage for of, outage in self._service.outages if of == number]
        return DraftReplica(self._events, self._service.cost, outages)

    def _target(self, number: int, setting: PolicySetting) -> TargetReplica:
        service, link = self._service, None
        if service.drafts_apart:
            link = DraftLink(
                self._events,
                self.drafts,
                number,
                service.latency,
                self._network_random,
                service.draft_prefill_s,
            )
        return TargetReplica(
            self._events,
            setting.controller(service.max_wait_s),
            service.cost,
            service.limits,
            setting.drafters,
            service.max_k,
            self.record,
            link,
            service.max_undrafted_steps,
            lambda _: self._finished(number),
        )

    def run(self) -> Record:
        """All of it; returns what counted."""
        load = self._service.load
        if isinstance(load, Arrivals):
            times = load.times(
                self._stretch.start_s, self._stretch.end_s, self._arrival_random, self._share
            )
            self._await_next(times)
        else:
            for target in self.targets:
                for _ in range(load):
                    target.submit(next(self._requests))
        self._events.run(self._stretch.end_s)
        return self.record

    def _await_next(self, times: Iterator[float]) -> None:
        time_s = next(times, None)
        if time_s is not None:
            self._events.at(time_s, lambda: self._arrive(times))

    def _arrive(self, times: Iterator[float]) -> None:
        target = min(self.targets, key=lambda each: each.num_requests)
        target.submit(next(self._requests))
        self._await_next(times)

    def _finished(self, number: int) -> None:
        """A client of a closed loop sends its next request at once: before the next step."""
        if not isinstance(self._service.load, Arrivals):
            target = self.targets[number]
            self._events.after(0.0, lambda: target.submit(next(self._requests)))
