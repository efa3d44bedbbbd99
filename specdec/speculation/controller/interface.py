"""What the controller sees and answers. Final: policies come and go behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from specdec.sequence import Explanation
from specdec.speculation.controller.profile import MAX_SECONDS, CostSeed

# No step is shorter, whatever a clock says: less would be a division by nothing further on.
MIN_STEP_S = 1e-6
# A round is answered within the step after the one that asked, or late. Claims of more steps than
# this are cut: what nobody here can measure must not price a draft out.
MAX_ROUND_STEPS = 4.0


@dataclass(slots=True)
class SequenceState:
    """One decoding sequence before a step.

    `max_k` already respects the request, the operator, the context end, max_tokens and free KV.
    `fixed_k` is set where the client fixed K. `drafter` is None where nothing may be proposed.
    `label` names the class of requests that it is likely to resemble, such as its tenant's.
    `confidence`: drafter -> what it says of its coming proposal, in [0, 1]; it must not depend on
    the value of a draft token (selection trap).
    """

    seq_id: int
    context_len: int
    max_k: int
    fixed_k: int | None
    drafter: str | None
    label: str = ""
    confidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class BatchState:
    """The next step before K is chosen. `num_prefill_tokens` are scheduled beside the decodes;
    `num_waiting` requests wait for a place, `free_kv` is the share of the KV cache that is free."""

    sequences: list[SequenceState]
    num_prefill_tokens: int
    num_kv_tokens: int
    now_s: float
    num_waiting: int = 0
    free_kv: float = 1.0


@dataclass(frozen=True, slots=True)
class Scored:
    """What a drafter that costs nothing to ask would have had accepted, whether it was used or not:
    its proposal was compared with `num_compared` committed tokens, and the first `num_matching` of
    them agree."""

    drafter: str
    num_compared: int
    num_matching: int


@dataclass(slots=True)
class SequenceResult:
    """What verification revealed for one sequence. `num_draft_tokens` <= the planned k: a late or
    short proposal drafted less. `num_committed_tokens` includes the recovered or bonus token."""

    seq_id: int
    drafter: str | None
    planned_k: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_committed_tokens: int
    finished: bool
    scored: tuple[Scored, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterTiming:
    """What a proposer measured of its drafter since the step before.

    draft_s: the draft's own computing time of the round that was answered last, None where none
        was. network_s: what a message and its answer took beside that, or a heartbeat; None where
        nothing came. waited_s: what this step waited for this drafter, None where that is not told
        apart. asked: (deepest k, draft tokens) of the answered round, None where it is the step's
        own.
    busy_fraction: of the draft's time, all its targets together; num_targets: those that asked it
        lately. is_silent: a replica was not heard of for three heartbeats, or is lost.
    """

    drafter: str
    draft_s: float | None = None
    network_s: float | None = None
    waited_s: float | None = None
    asked: tuple[int, int] | None = None
    busy_fraction: float = 0.0
    num_targets: int = 1
    is_silent: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether all of this can be true: a drafter elsewhere may send anything."""
        times = (self.draft_s, self.network_s, self.waited_s)
        return all(s is None or _is_time(s) for s in times) and math.isfinite(self.busy_fraction)

    def within(self, step_s: float) -> DrafterTiming:
        """The same, with no more claimed than can have been beside steps of so many seconds."""
        most_s = MAX_ROUND_STEPS * step_s
        if self.draft_s is None or self.draft_s <= most_s:
            return self
        return replace(self, draft_s=most_s)


@dataclass(slots=True)
class StepResult:
    """One executed step: its parts in seconds and every sequence's outcome.

    `num_tokens` is what the target ran over (prefill + decode + draft tokens); `propose_s` is the
    time that the step waited for proposals, `step_s` the whole step. `timings`: at most one for
    each drafter. `first_tokens_s`: since arrival, of the requests whose first token it brought.
    """

    num_tokens: int
    num_prefill_tokens: int
    num_kv_tokens: int
    propose_s: float
    run_s: float
    step_s: float
    sequences: list[SequenceResult]
    now_s: float
    timings: tuple[DrafterTiming, ...] = ()
    first_tokens_s: tuple[float, ...] = ()

    @property
    def has_sound_times(self) -> bool:
        """Whether a clock can have shown these times: none is negative, endless or no number, and
        the wait is a part of the step."""
        times = (self.step_s, self.propose_s, *self.first_tokens_s)
        in_order = self.propose_s <= self.step_s and math.isfinite(self.now_s)
        return all(map(_is_time, times)) and in_order

    def with_physical_step(self) -> StepResult:
        """The same, with a step that is not shorter than one can be."""
        return self if self.step_s >= MIN_STEP_S else replace(self, step_s=MIN_STEP_S)


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= MAX_SECONDS


class Controller(Protocol):
    """Chooses K per sequence per step. Called from the engine's thread; must take microseconds."""

    def choose_drafters(
        self, state: BatchState, options: SequenceOf[tuple[str, ...]]
    ) -> list[str | None]:
        """Who is to propose for each sequence in the coming step, one of its `options` (the
        preferred one first; None where it has none). Asked before `plan` where any sequence has
        several; `state` names the preferred ones."""
        ...

    def plan(self, state: BatchState) -> list[int]:
        """k for each of `state.sequences`, in order, 0 <= k <= max_k."""
        ...

    def observe(self, result: StepResult) -> None:
        """Learn from an executed step."""
        ...

    def close(self, seq_id: int) -> None:
        """Forget a sequence, however it ended; unknown and closed ones are no error. Those that a
        result reports as finished are closed by that."""
        ...

    def wait_s(self) -> float:
        """How long the step just planned may wait for proposals, in seconds; always finite."""
        ...

    def explain(self, seq_id: int, last_steps: int | None = None) -> tuple[Explanation, ...]:
        """Why a sequence got its k in the `last_steps` planned last, None being all that is
        remembered, oldest first; ended and unknown sequences are no error. May be called from any
        thread."""
        ...

    def snapshot(self) -> dict[str, float | str]:
        """State for metrics: shadow price, goodput, guard state and so on."""
        ...


@runtime_checkable
class Seeded(Protocol):
    """A controller that reckons with times, and can start from measured ones."""

    @property
    def knows_steps(self) -> bool:
        """Whether it knows what the target's steps take."""
        ...

    def seed(self, seed: CostSeed) -> None:
        """Take them up, before the first step."""
        ...
