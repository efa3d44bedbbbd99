"""Replicas that come and go by the service's own rule, with the delays that Serve gives it.

Readings are taken once a second and averaged as Serve does; what is decided takes effect after a
delay, and a new replica serves after its start-up. A target that leaves takes no more requests and
finishes those it has; a draft that leaves hands its sessions over at once. What the rule says is
`specdec.speculation.scaling`'s business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from specdec.errors import ConfigError
from specdec.simulation.service.drafts import DraftReplica
from specdec.simulation.service.events import Events
from specdec.simulation.service.records import Record, Replicas
from specdec.simulation.service.replica import TargetReplica
from specdec.speculation.scaling import (
    DraftReading,
    TargetReading,
    WaitedShare,
    speculation_of,
    wanted_drafts,
    wanted_targets,
)

READ_EVERY_S = 1.0
LOOK_BACK_S = 30.0

Replica = TypeVar("Replica")
AnyReplica = TargetReplica | DraftReplica


@dataclass(frozen=True, slots=True)
class Delays:
    """How long another count must be wanted before it is taken."""

    up_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds above (the service's own counts are those below), delays as in the shipped configs,
    and what replicas cost, in GPUs. start_up_s: from the decision to the first request."""

    max_targets: int
    max_drafts: int
    start_up_s: float = 120.0
    target_delays: Delays = Delays(30.0, 600.0)
    draft_delays: Delays = Delays(30.0, 300.0)
    target_cost: float = 1.0
    draft_cost: float = 1.0

    def check(self, num_targets: int, num_drafts: int) -> None:
        """Raise ConfigError where a bound above lies under the one below."""
        for field, most, least in (
            ("max_targets", self.max_targets, num_targets),
            ("max_drafts", self.max_drafts, num_drafts),
        ):
            if most < least:
                raise ConfigError(
                    f"{field} must be at least the {least} to begin with, not {most}", field=field
                )


class Delay:
    """Lets a wanted count through once all that was wanted for long enough lay on that side."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._direction = 0
        self._since_s = 0.0

    def decide(self, wanted: int, current: int, now_s: float) -> int:
        """The count to have now."""
        direction = int(np.sign(wanted - current))
        if direction != self._direction:
            self._direction, self._since_s = direction, now_s
        delay_s = self._delays.up_s if direction > 0 else self._delays.down_s
        if direction == 0 or now_s - self._since_s < delay_s:
            return current
        self._direction = 0
        return wanted


class Group(Generic[Replica]):
    """Replicas of one kind. `serving` is shared with those who use them."""

    def __init__(
        self,
        events: Events,
        serving: list[Replica],
        make: Callable[[int], Replica],
        bounds: tuple[int, int],
        delays: Delays,
        start_up_s: float,
    ) -> None:
        self.serving = serving
        self.leaving: list[Replica] = []
        self.num_changes = 0
        self._events = events
        self._make = make
        self._least, self._most = bounds
        self._delay = Delay(delays)
        self._start_up_s = start_up_s
        self._num_made = len(serving)
        self._starting: list[int] = []

    @property
    def count(self) -> int:
        """As decided: those that serve, and those that start."""
        return len(self.serving) + len(self._starting)

    def scale(self, wanted: int) -> None:
        """Move towards what is wanted, within bounds and delays."""
        bounded = min(max(wanted, self._least), self._most)
        count = self._delay.decide(bounded, self.count, self._events.now_s)
        self.num_changes += count != self.count
        while count > self.count:
            self._start()
        while count < self.count:
            self._stop()

    def _start(self) -> None:
        number, self._num_made = self._num_made, self._num_made + 1
        self._starting.append(number)
        self._events.after(self._start_up_s, lambda: self._started(number))

    def _started(self, number: int) -> None:
        if number in self._starting:
            self._starting.remove(number)
            self.serving.append(self._make(number))

    def _stop(self) -> None:
        """Those that do not serve yet go first, as Serve has it, then the newest."""
        if self._starting:
            self._starting.pop()
        else:
            self.leaving.append(self.serving.pop())


class Autoscaler:
    """Reads both groups, and scales them, for as long as events go on."""

    def __init__(
        self,
        events: Events,
        scaling: Scaling,
        targets: Group[TargetReplica],
        drafts: Group[DraftReplica],
        record: Record,
    ) -> None:
        self.targets = targets
        self.drafts = drafts
        self._events = events
        self._scaling = scaling
        self._record = record
        # What was read of a replica goes with it.
        self._windows: WeakKeyDictionary[AnyReplica, deque[tuple[float, ...]]] = WeakKeyDictionary()
        self._waited: WeakKeyDictionary[TargetReplica, WaitedShare] = WeakKeyDictionary()
        self._busy_s: WeakKeyDictionary[DraftReplica, float] = WeakKeyDictionary()
        events.after(0.0, self._tick)

    def _tick(self) -> None:
        target_readings = [TargetReading(*self._mean(each)) for each in self.targets.serving]
        draft_readings = [DraftReading(*self._mean(each)) for each in self.drafts.serving]
        running = len(target_readings), len(draft_readings)
        self.targets.scale(wanted_targets(target_readings, running[0], self.targets.count))
        self.drafts.scale(
            wanted_drafts(
                draft_readings, target_readings, running[1], running[0], self.drafts.count
            )
        )
        self.targets.leaving = [each for each in self.targets.leaving if each.num_requests]
        self.drafts.leaving.clear()
        self._record.replicas(
            Replicas(
                self._events.now_s,
                len(self.targets.serving),
                len(self.drafts.serving),
                self._cost() * READ_EVERY_S,
                self.targets.num_changes,
                self.drafts.num_changes,
            )
        )
        self._events.after(READ_EVERY_S, self._tick)

    def _cost(self) -> float:
        """Of all that hold GPUs, also while they start or finish."""
        num_targets = self.targets.count + len(self.targets.leaving)
        scaling = self._scaling
        return num_targets * scaling.target_cost + self.drafts.count * scaling.draft_cost

    def _mean(self, replica: AnyReplica) -> list[float]:
        """Read a replica, and average what it reported lately."""
        window = self._windows.setdefault(replica, deque(maxlen=int(LOOK_BACK_S)))
        if isinstance(replica, TargetReplica):
            window.append(astuple(self._read_target(replica)))
        else:
            window.append(astuple(self._read_draft(replica)))
        return [float(value) for value in np.mean(window, axis=0)]

    def _read_target(self, target: TargetReplica) -> TargetReading:
        waited = self._waited.setdefault(target, WaitedShare(lambda: self._events.now_s))
        speculation = speculation_of(target.controller.snapshot())
        return TargetReading(
            usage=target.usage,
            num_running=target.num_running,
            num_waiting=target.num_waiting,
            gain=speculation.gain if target.num_running else 1.0,
            price=speculation.price,
            waited=waited.share(target.waited_s),
            cost=self._scaling.target_cost,
        )

    def _read_draft(self, draft: DraftReplica) -> DraftReading:
        before_s = self._busy_s.get(draft, draft.busy_s)
        self._busy_s[draft] = draft.busy_s
        return DraftReading((draft.busy_s - before_s) / READ_EVERY_S, self._scaling.draft_cost)
