"""How many targets and drafts a service should have: plain arithmetic on what replicas report.

Targets follow how full they are, and what waits. Drafts follow the price of drafting: as many as
keep their time free of charge, and never more than bring in what they cost. Both rules name a band
of counts that will do, and the present count moves no further than to its nearest edge: what lies
between the edges is the dead band. Delays and bounds are those of who asks.
docs/scaling.md explains every constant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import astuple, dataclass, fields
from typing import TypeVar

from specdec.speculation.controller.drafter_cost import FREE_BUSY

# A target is full enough where this share of its KV cache, or of its places, is taken, and may
# take over what others have up to the lower one.
FULL_USAGE, ROOMY_USAGE = 0.8, 0.6
# Requests that wait: more than the first at every target call for another, more than the second
# per target keep all.
LONG_QUEUE, SHORT_QUEUE = 4.0, 1.0
# At most so many times the targets that are up: while others start the queue grows, and would call
# for more and more that are idle once it is worked off.
GROWTH = 2
# Where a draft's time begins to have a price, and what is low enough to close one.
BUSY, IDLE_ENOUGH = FREE_BUSY, 0.5
# What readings are taken for at most, and at least where they are not 0: beyond these a quotient
# of two of them may be no number. A share of more than 1 is a full one; a thousandth of a request
# is one that ran for 30 ms of the half minute.
MOST = {"usage": 1.0, "gain": 1000.0, "price": 1.0, "waited": 1.0, "busy_fraction": 1.0}
MOST_COUNTED, LEAST = 1e6, 1e-3

Reading = TypeVar("Reading", "TargetReading", "DraftReading")


@dataclass(frozen=True, slots=True)
class TargetReading:
    """One target, averaged over the last half minute.

    usage: taken share of the KV cache or of the places in its batch, whichever is more.
    gain: its speed over that without speculation, 1 where it does not speculate.
    price: what a second of the draft's time costs other targets, 0 to 1 (`capacity_price`).
    waited: part of its time that it waited for drafts. cost: of the replica, such as its GPUs.
    """

    usage: float
    num_running: float
    num_waiting: float
    gain: float
    price: float
    waited: float
    cost: float

    def need(self, num_waiting: float) -> float:
        """Replicas that would be exactly full of what runs here and `num_waiting` more, which will
        take as much room as what runs."""
        if self.num_running <= 0:
            return max(self.usage, 1.0) if num_waiting > 0 else self.usage
        return self.usage * (1 + num_waiting / self.num_running)


@dataclass(frozen=True, slots=True)
class DraftReading:
    """One draft, averaged over the last half minute. cost: in the unit of the targets'."""

    busy_fraction: float
    cost: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a target's controller says of speculation at the moment."""

    gain: float
    price: float


def speculation_of(snapshot: Mapping[str, float | str], drafter: str = "draft") -> Speculation:
    """Read a controller's snapshot; NaN is what it does not tell. Where it does not speculate, by
    choice or by guard, there is no gain."""
    price = _number(snapshot, f"capacity_price_{drafter}", 0.0)
    if "phase" in snapshot and snapshot["phase"] != "on":
        return Speculation(1.0, price)
    baseline = _number(snapshot, "predicted_baseline", math.nan)
    goodput = _number(snapshot, "predicted_goodput", math.nan)
    return Speculation(goodput / baseline if baseline > 0 else math.nan, price)


def _number(snapshot: Mapping[str, float | str], key: str, absent: float) -> float:
    value = snapshot.get(key, absent)
    return float(value) if isinstance(value, (int, float)) else absent


class WaitedShare:
    """Part of the time since the last look in which a target waited for drafts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s, self._waited_s = clock(), 0.0

    def share(self, waited_s: float) -> float:
        """`waited_s`: seconds waited in all, since the target's start."""
        now_s = self._clock()
        share = (waited_s - self._waited_s) / max(now_s - self._looked_s, 1e-9)
        self._looked_s, self._waited_s = now_s, waited_s
        return min(max(share, 0.0), 1.0)


def wanted_targets(readings: SequenceOf[TargetReading], num_running: int, current: int) -> int:
    """Target replicas to have.

    readings: of the `num_running` replicas that are up, those that reported; `current`: the count
    that was decided last, of which some may still be starting. Without a reading, or
    with none up, that stands.
    """
    sound = [
        _bounded(each)
        for each in readings
        if _are_sound(each.usage, each.num_running, each.num_waiting)
    ]
    if not sound or num_running == 0:
        return current
    # The next request finds the shortest queue. What waits elsewhere stays where it is: it would
    # have nothing of another target.
    queue = min(each.num_waiting for each in sound)
    need = num_running * _mean(each.need(queue) for each in sound)
    least, most = math.ceil(need / FULL_USAGE), math.ceil(need / ROOMY_USAGE)
    if queue > LONG_QUEUE:
        # Against those that are up: what is starting already must not be ordered again.
        least = max(least, num_running + 1)
    least = min(least, GROWTH * num_running)
    if _mean(each.num_waiting for each in sound) > SHORT_QUEUE:
        most = max(most, current)
    return _nearest(current, max(least, 1), max(most, 1))


def wanted_drafts(
    drafts: SequenceOf[DraftReading],
    targets: SequenceOf[TargetReading],
    num_running: int,
    num_targets: int,
    current: int,
) -> int:
    """Draft replicas to have.

    drafts, targets: of `num_running` drafts and `num_targets` targets that are up, those that
    reported; `current` as in `wanted_targets`. Where nothing is known of the targets' gain, load
    alone decides; where no draft reports, `current` stands. With no draft at all nothing can tell
    what one would bring, so the first is tried as soon as a target has work.
    """
    told = [_bounded(each) for each in targets if _are_sound(*astuple(each))]
    # Also where the gain is not known: a controller that has decided nothing yet tells none.
    has_work = any(math.isfinite(each.num_running) and each.num_running > 0 for each in targets)
    if current == 0:
        return int(has_work)
    sound = [_bounded(each) for each in drafts if _are_sound(*astuple(each))]
    if not sound:
        return current
    load = num_running * _mean(each.busy_fraction for each in sound)
    least, most = math.ceil(load / BUSY), math.ceil(load / IDLE_ENOUGH)
    cost = _mean(each.cost for each in sound)
    if told and cost > 0:
        worth = _worth(told, num_targets, load) / cost
        least, most = min(least, math.floor(worth)), min(most, math.ceil(worth))
    return _nearest(current, max(least, int(has_work)), max(most, int(has_work)))


def _worth(targets: SequenceOf[TargetReading], num_targets: int, load: float) -> float:
    """What drafting brings, in the unit of cost: the targets that it stands in for, and those whose
    time is lost to waiting for each other's rounds. Of the draft time that is used, `load`, the
    price says how much others wait for it; but no more is lost than is waited."""
    saved = _mean(each.cost * max(each.gain - 1, 0.0) for each in targets)
    waited = num_targets * _mean(each.waited for each in targets)
    lost = min(_mean(each.price for each in targets) * load, waited)
    return num_targets * saved + lost * _mean(each.cost for each in targets)


def _nearest(current: int, least: int, most: int) -> int:
    return min(max(current, least), max(least, most))


def _are_sound(*values: float) -> bool:
    return all(math.isfinite(value) and value >= 0 for value in values)


def _bounded(reading: Reading) -> Reading:
    """The same with every number in its physical range; what is no number stays so."""
    values = {}
    for member in fields(reading):
        value = getattr(reading, member.name)
        most = MOST.get(member.name, MOST_COUNTED)
        values[member.name] = 0.0 if value < LEAST else (most if value > most else value)
    return type(reading)(**values)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
