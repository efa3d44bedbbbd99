"""Draft replicas apart from their targets: queues, batches, outages, and links that notice them.

A draft computes all rounds that wait for it as one batch, as deep as the deepest. Knows counts and
times; what the tokens are worth is the target's business.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.simulation.costs import StepCost
from specdec.simulation.service.events import Events
from specdec.simulation.service.network import Latency
from specdec.speculation.controller.interface import DrafterTiming

NAME = "draft"
SILENT_AFTER_S = 0.3  # three heartbeats
BUSY_RATE_S = 1.0
LATELY_S = 1.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A draft is gone from `start_s` to `end_s`; what it had in hand is lost."""

    start_s: float
    end_s: float

    def covers(self, now_s: float) -> bool:
        return self.start_s <= now_s < self.end_s


@dataclass(frozen=True, slots=True)
class Round:
    """One target's step asks for proposals. `answer` is called with the seconds of drafting."""

    target: int
    depth: int
    num_tokens: int
    answer: Callable[[float], None]


class DraftReplica:
    """One draft with its queue."""

    def __init__(self, events: Events, cost: StepCost, outages: SequenceOf[Outage] = ()) -> None:
        self._events = events
        self._cost = cost
        self._outages = outages
        self._waiting: list[Round] = []
        self._is_busy = False
        self.busy_s = 0.0  # of all rounds so far
        self._busy_until_s = self._busy = self._measured_s = 0.0
        self._asked_at: dict[int, float] = {}

    def ask(self, asked: Round) -> None:
        """A message arrives. One that comes during an outage is lost."""
        self._asked_at[asked.target] = self._events.now_s
        if self.outage(self._events.now_s) is None:
            self._waiting.append(asked)
            self._start()

    def outage(self, now_s: float) -> Outage | None:
        """The one that covers this moment."""
        return next((outage for outage in self._outages if outage.covers(now_s)), None)

    def _start(self) -> None:
        if self._is_busy or not self._waiting:
            return
        batch, self._waiting = self._waiting, []
        depth = max(asked.depth for asked in batch)
        num_tokens = sum(asked.num_tokens for asked in batch)
        seconds = self._cost.propose_s({NAME: (depth, num_tokens)})
        self._is_busy = True
        self._measure(1.0)
        self._events.after(seconds, lambda: self._finish(batch, self._events.now_s - seconds))

    def _finish(self, batch: SequenceOf[Round], started_s: float) -> None:
        now_s = self._events.now_s
        self._is_busy = False
        self.busy_s += now_s - started_s
        self._measure(0.0)
        is_lost = any(o.start_s < now_s and o.end_s > started_s for o in self._outages)
        if is_lost:
            # The queue of before the outage is gone with it.
            self._waiting.clear()
        else:
            for asked in batch:
                asked.answer(now_s - started_s)
        self._start()

    def _measure(self, is_busy: float) -> None:
        """Fold the time since the last change into the busy fraction, which was the other value."""
        now_s = self._events.now_s
        weight = np.exp(-(now_s - self._measured_s) / BUSY_RATE_S)
        self._busy = float(weight * self._busy + (1 - weight) * (1.0 - is_busy))
        self._measured_s = now_s

    @property
    def busy_fraction(self) -> float:
        """Of the last second or so."""
        return self._busy

    @property
    def num_targets(self) -> int:
        """Targets that asked lately."""
        since_s = self._events.now_s - LATELY_S
        return max(sum(asked_s >= since_s for asked_s in self._asked_at.values()), 1)


class DraftLink:
    """One target's way to the drafts: its own one first, another while that is silent.

    A draft that takes over, or comes back, first computes the contexts of the target's sequences.
    drafts: those there are; where some come or go, each target's own one is told anew.
    """

    def __init__(
        self,
        events: Events,
        drafts: SequenceOf[DraftReplica],
        target: int,
        latency: Latency,
        random: np.random.Generator,
        prefill_s: float,
    ) -> None:
        self._events = events
        self._drafts = drafts
        self._target = target
        self._latency = latency
        self._random = random
        self._prefill_s = prefill_s
        self._own = self._draft = self._own_of(drafts)
        self._ready_s = events.now_s
        self._timing = DrafterTiming(NAME)

    def is_available(self, num_context_tokens: int) -> bool:
        """Whether proposals can be asked for; moves to another draft where the present one has been
        silent for long enough, and `num_context_tokens` are to be computed there."""
        now_s = self._events.now_s
        catch_up_s = num_context_tokens * self._prefill_s
        own = self._own_of(self._drafts)
        if own is not self._own:
            self._own = self._draft = own
            self._ready_s = now_s + catch_up_s
        if self._draft is None:
            return False
        outage = self._draft.outage(now_s)
        if outage is None or now_s < outage.start_s + SILENT_AFTER_S:
            return now_s >= self._ready_s
        start = self._target % len(self._drafts)
        in_order = [*self._drafts[start:], *self._drafts[:start]]
        other = next((draft for draft in in_order if draft.outage(now_s) is None), None)
        if other is not None:
            self._draft, self._ready_s = other, now_s + catch_up_s
        else:
            self._ready_s = outage.end_s + catch_up_s
        return False

    def _own_of(self, drafts: SequenceOf[DraftReplica]) -> DraftReplica | None:
        return drafts[self._target % len(drafts)] if drafts else None

    def ask(self, depth: int, num_tokens: int, answered: Callable[[], None]) -> None:
        """Ask for a round; `answered` is called when its proposals arrive, which may be never."""
        there_s = self._latency.sample(self._random)
        draft = self._draft
        assert draft is not None, "asked while no draft is available"

        def answer(draft_s: float) -> None:
            back_s = self._latency.sample(self._random)
            self._events.after(back_s, lambda: arrive(draft_s, there_s + back_s))

        def arrive(draft_s: float, network_s: float) -> None:
            self._timing = DrafterTiming(
                NAME, draft_s=draft_s, network_s=network_s, asked=(depth, num_tokens)
            )
            answered()

        asked = Round(self._target, depth, num_tokens, answer)
        self._events.after(there_s, lambda: draft.ask(asked))

    def take_timing(self, waited_s: float | None) -> DrafterTiming:
        """What was measured since the last call."""
        timing, self._timing = self._timing, DrafterTiming(NAME)
        if self._draft is None:
            return timing
        outage = self._draft.outage(self._events.now_s)
        return DrafterTiming(
            NAME,
            draft_s=timing.draft_s,
            network_s=timing.network_s,
            waited_s=waited_s,
            asked=timing.asked,
            busy_fraction=self._draft.busy_fraction,
            num_targets=self._draft.num_targets,
            is_silent=outage is not None and self._events.now_s >= outage.start_s + SILENT_AFTER_S,
        )
