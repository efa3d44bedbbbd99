"""The controller's last decisions: the answer to "why was K three just then?".

Keeps references to the arrays that each decision was made of, and makes explanations of them only
when asked. It decides nothing, and forgets the oldest steps first.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.sequence import Explanation
from specdec.speculation.controller.interface import SequenceResult
from specdec.speculation.controller.policy import Decision, ProposeCost
from specdec.speculation.controller.reasons import Situation, reason
from specdec.speculation.controller.step import PlannedStep

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_STEPS = 512
# Of 4 bytes each; more than MAX_STEPS of 256 sequences at K = 8 need.
MAX_SURVIVALS = 2_000_000
NO_SURVIVAL = np.empty((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a decision by price was made of: the arguments of `decide`, and its result.

    survival: [sequences, max_k]. propose: one cost for each of the step's drafters.
    """

    survival: Floats
    propose: tuple[ProposeCost, ...]
    decision: Decision


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """What verification revealed, one entry per sequence."""

    seq_ids: array[int]
    num_drafted: array[int]
    num_accepted: array[int]


@dataclass(slots=True)
class _Entry:
    """One planned step. survival: [sequences, largest k + 1] in float32, since the columns behind
    it are of no interest; nothing of it, of propose and of decision where prices had no say. The
    rest as in `PlannedStep`, whose states of the sequences are let go."""

    number: int
    time_s: float
    phase: str
    seq_ids: list[int]
    drafters: list[str]
    drafter: Ints
    max_k: Ints
    is_fixed: NDArray[np.bool_]
    ks: Ints
    guard_ratio: float
    survival: NDArray[np.float32]
    propose: tuple[ProposeCost, ...]
    decision: Decision | None
    outcomes: _Outcomes | None = None


class DecisionLog:
    """The last `max_steps` planned steps, fewer where they hold more than MAX_SURVIVALS estimates.

    `append` and `observe` belong to the engine's thread; `explanations` may be asked from any.
    """

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._entries: deque[_Entry] = deque()
        self._num_survivals = 0
        self._number = 0

    def append(
        self,
        step: PlannedStep,
        ks: Ints,
        phase: str,
        time_s: float,
        guard_ratio: float,
        grounds: Grounds | None,
    ) -> None:
        """Remember a step as planned; `grounds` is None where prices had no say. The arrays are
        kept, not copied: nobody may change them afterwards."""
        self._number += 1
        entry = _Entry(
            number=self._number,
            time_s=time_s,
            phase=phase,
            seq_ids=step.seq_ids,
            drafters=step.drafters,
            drafter=step.drafter,
            max_k=step.max_k,
            is_fixed=step.is_fixed,
            ks=ks,
            guard_ratio=guard_ratio,
            survival=NO_SURVIVAL,
            propose=(),
            decision=None,
        )
        if grounds is not None:
            width = int(ks.max(initial=0)) + 1
            entry.survival = grounds.survival[:, :width].astype(np.float32)
            entry.propose, entry.decision = grounds.propose, grounds.decision
        self._entries.append(entry)
        self._num_survivals += entry.survival.size
        while len(self._entries) > self._max_steps or self._num_survivals > MAX_SURVIVALS:
            self._num_survivals -= self._entries.popleft().survival.size

    def observe(self, results: SequenceOf[SequenceResult]) -> None:
        """Add what became of the step planned last."""
        if results and self._entries and self._entries[-1].outcomes is None:
            self._entries[-1].outcomes = _Outcomes(
                array("q", [result.seq_id for result in results]),
                array("i", [result.num_draft_tokens for result in results]),
                array("i", [result.num_accepted_tokens for result in results]),
            )

    def explanations(self, seq_id: int, last_steps: int | None = None) -> tuple[Explanation, ...]:
        """Those of one sequence in the last steps of the log (None: in all), oldest first."""
        # Copied in one go, without a word of Python: the engine's thread may append meanwhile.
        entries = tuple(self._entries)
        first = 0 if last_steps is None else max(0, len(entries) - last_steps)
        return tuple(
            _explain(entry, entry.seq_ids.index(seq_id))
            for entry in entries[first:]
            if seq_id in entry.seq_ids
        )


def _explain(entry: _Entry, row: int) -> Explanation:
    survival = _survival(entry, row)
    situation = _situation(entry, row, survival)
    index = int(entry.drafter[row])
    num_drafted, num_accepted = _outcome(entry, entry.seq_ids[row])
    return Explanation(
        step=entry.number,
        time_s=entry.time_s,
        phase=entry.phase,
        drafter=entry.drafters[index] if index >= 0 else None,
        k=situation.k,
        num_draft_tokens=num_drafted,
        num_accepted_tokens=num_accepted,
        survival=survival,
        shadow_price=situation.shadow_price,
        depth_price=situation.depth_price,
        predicted_speedup=situation.predicted_speedup,
        guard_ratio=entry.guard_ratio,
        reason=reason(situation),
    )


def _situation(entry: _Entry, row: int, survival: tuple[float, ...]) -> Situation:
    k, limit = int(entry.ks[row]), int(entry.max_k[row])
    decision = entry.decision
    decided_k = int(decision.ks[row]) if decision else k
    depth = int(entry.ks[entry.drafter == entry.drafter[row]].max())
    return Situation(
        phase=entry.phase,
        k=k,
        decided_k=decided_k,
        limit=limit,
        is_fixed=bool(entry.is_fixed[row]),
        has_drafter=bool(entry.drafter[row] >= 0),
        depth=depth,
        num_draft_tokens=int(entry.ks.sum()),
        next_survival=survival[k] if len(survival) > k else None,
        shadow_price=decision.shadow_price if decision else 0.0,
        depth_price=_depth_price(entry, row, k, depth),
        predicted_speedup=_speedup(entry.phase, decision),
        guard_ratio=entry.guard_ratio,
    )


def _speedup(phase: str, decision: Decision | None) -> float:
    if decision is None:
        return 1.0
    return decision.offered_gain if phase == "off" else decision.gain


def _survival(entry: _Entry, row: int) -> tuple[float, ...]:
    """Of positions 1..k + 1, as far as they were free to choose."""
    if not entry.survival.size:
        return ()
    num_positions = min(int(entry.ks[row]) + 1, int(entry.max_k[row]))
    return tuple(round(chance, 4) for chance in entry.survival[row, :num_positions].tolist())


def _depth_price(entry: _Entry, row: int, k: int, depth: int) -> float:
    """Tokens that the drafter's time for position k + 1 of this row must earn. A step of it is paid
    once for the whole batch, so only going beyond the deepest k costs one."""
    index = int(entry.drafter[row])
    if entry.decision is None or index < 0:
        return 0.0
    cost, goodput = entry.propose[index], entry.decision.goodput
    seconds = cost.per_token_s
    if k == depth and depth + 1 < len(cost.by_depth):
        seconds += float(cost.by_depth[depth + 1] - cost.by_depth[depth])
    return goodput * seconds


def _outcome(entry: _Entry, seq_id: int) -> tuple[int | None, int | None]:
    outcomes = entry.outcomes
    if outcomes is None or seq_id not in outcomes.seq_ids:
        return None, None
    row = outcomes.seq_ids.index(seq_id)
    return outcomes.num_drafted[row], outcomes.num_accepted[row]
