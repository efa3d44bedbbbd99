"""The one interface of all drafters, local or remote (design section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from specdec.sampling.law import SparseLaw
from specdec.sequence import Sequence
from specdec.speculation.controller.interface import DrafterTiming


@dataclass(slots=True)
class DraftTokens:
    """Checked draft tokens that extend a sequence's committed text.

    `laws` is empty for one-hot proposals (n-gram, greedy, coupled).
    """

    token_ids: list[int]
    laws: list[SparseLaw] = field(default_factory=list)


@dataclass(slots=True)
class Committed:
    """The outcome of one verify pass for one sequence, told to its drafter.

    `token_ids` are the newly committed ones (accepted + recovered or bonus, cut by a stop);
    `num_draft_tokens` were verified, `num_accepted_tokens` of them accepted.
    """

    seq_id: int
    token_ids: list[int]
    num_draft_tokens: int
    num_accepted_tokens: int


class Proposer(Protocol):
    """Proposes draft tokens. Never raises for a drafter's fault: it proposes nothing instead and
    tells why in `disabled_reason`. All calls come from the engine's thread."""

    name: str
    # Whether `propose` may take time, up to `wait_s`.
    takes_time: bool

    def open(self, sequences: SequenceOf[Sequence]) -> None:
        """Take up sequences whose prefill is about to start."""
        ...

    def available(self, seq_id: int) -> bool:
        """Whether a proposal may be expected for this sequence now (costs nothing to ask)."""
        ...

    def confidence(self, seq_id: int) -> float | None:
        """What it says of its coming proposal, in [0, 1], larger being surer; None where it cannot
        tell before it drafts. Never a function of the draft tokens' own values, since K follows
        from it (selection trap). Its scale is learned from outcomes."""
        ...

    def prepare(self, seq_ids: SequenceOf[int]) -> None:
        """Do now what must be done once before the first proposal for these sequences, the only
        ones of the coming step, and takes the target's own time. Most drafters need nothing."""
        ...

    def propose(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        """At most ks[seq_id] draft tokens for each sequence, within `wait_s` seconds.

        A sequence without an answer in time is absent from the result.
        """
        ...

    def num_matching(self, seq_id: int, token_ids: SequenceOf[int]) -> int | None:
        """How many of the tokens that were just committed its proposal would have begun with, had
        it been asked when `available` was; None where it cannot tell, or not for free."""
        ...

    def commit(self, results: SequenceOf[Committed]) -> None:
        """Tell what was committed; every committed token of every open sequence is told once."""
        ...

    def close(self, seq_ids: SequenceOf[int]) -> None:
        """Forget sequences, at once and for good."""
        ...

    def disabled_reason(self, seq_id: int) -> str | None:
        """Why this sequence gets no proposals, or None."""
        ...

    def shutdown(self) -> None:
        """Release threads and connections; no call follows."""
        ...


@runtime_checkable
class TimedProposer(Protocol):
    """A proposer whose drafter works elsewhere, beside the step: only it knows for how long."""

    def take_timing(self) -> DrafterTiming:
        """What was measured since the last call; `waited_s` is the caller's."""
        ...
