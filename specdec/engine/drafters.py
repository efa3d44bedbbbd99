"""All drafters of an engine, seen as one: who may propose for which sequence, in which order.

The engine speaks to proposers only through this. A sequence is open at every drafter that it
allows, so that another can take over in the step in which one is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from specdec.sequence import Sequence
from specdec.speculation.controller.interface import DrafterTiming, Scored, SequenceResult
from specdec.speculation.proposer import Committed, DraftTokens, Proposer, TimedProposer


class Drafters:
    """The engine's proposers by name."""

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proposers = dict(proposers)
        self._clock = clock
        self._open: dict[int, Sequence] = {}
        self._waited_s: dict[str, float] = {}

    def __getitem__(self, name: str) -> Proposer:
        return self._proposers[name]

    def open(self, sequences: Iterable[Sequence]) -> None:
        """Take up sequences: when their prefill starts, so that a drafter's runs beside it, or
        later; those taken up before (and preempted since) are passed over."""
        fresh = [sequence for sequence in sequences if sequence.seq_id not in self._open]
        for sequence in fresh:
            self._open[sequence.seq_id] = sequence
        for name, proposer in self._proposers.items():
            wanted = [sequence for sequence in fresh if name in sequence.drafters]
            if wanted:
                proposer.open(wanted)

    def available(self, sequence: Sequence, may_wait: bool = True) -> tuple[str, ...]:
        """The drafters that could propose for this sequence now, the preferred one first; unless
        the step `may_wait`, only those that take no time."""
        return tuple(
            name
            for name in sequence.drafters
            if (may_wait or not self._proposers[name].takes_time)
            and self._proposers[name].available(sequence.seq_id)
        )

    def confidence(self, sequence: Sequence, names: SequenceOf[str]) -> dict[str, float]:
        """What those of these drafters that can tell say of their coming proposals."""
        told = {name: self._proposers[name].confidence(sequence.seq_id) for name in names}
        return {name: value for name, value in told.items() if value is not None}

    def prepare(self, sequences: SequenceOf[Sequence]) -> None:
        """Let drafters do what they need once before they propose for the sequences of a step."""
        for name, proposer in self._proposers.items():
            theirs = [s.seq_id for s in sequences if name in s.drafters]
            if theirs and len(theirs) == len(sequences):
                proposer.prepare(theirs)

    def propose(self, ks: Mapping[int, int], wait_s: float) -> dict[int, DraftTokens]:
        """At most ks[seq_id] draft tokens for each sequence, from its `used_drafter`."""
        by_drafter: dict[str, dict[int, int]] = {}
        for seq_id, k in ks.items():
            name = self._open[seq_id].used_drafter
            if name is not None:
                by_drafter.setdefault(name, {})[seq_id] = k
        drafts: dict[int, DraftTokens] = {}
        self._waited_s = {}
        for name, wanted in by_drafter.items():
            started_s = self._clock()
            drafts.update(self._proposers[name].propose(wanted, wait_s))
            self._waited_s[name] = self._clock() - started_s
        return drafts

    def take_timings(self) -> tuple[DrafterTiming, ...]:
        """What the last `propose` took of each drafter, and what distant ones measured themselves.
        One that drafts in this thread computes for as long as it is waited for."""
        timings = []
        for name, proposer in self._proposers.items():
            waited_s = self._waited_s.get(name)
            if isinstance(proposer, TimedProposer):
                timings.append(replace(proposer.take_timing(), waited_s=waited_s))
            elif waited_s is not None:
                timings.append(DrafterTiming(name, draft_s=waited_s, waited_s=waited_s))
        return tuple(timings)

    def score(self, committed: SequenceOf[Committed], results: SequenceOf[SequenceResult]) -> None:
        """Add to the results what drafters that take no time would have had accepted, whether they
        proposed or not; to be asked before they hear of the commits."""
        tokens = {result.seq_id: result.token_ids for result in committed}
        free = [proposer for proposer in self._proposers.values() if not proposer.takes_time]
        for result in results:
            for proposer in free:
                compared = tokens[result.seq_id]
                matching = proposer.num_matching(result.seq_id, compared) if compared else None
                if matching is not None:
                    score = Scored(proposer.name, len(compared), matching)
                    result.scored = (*result.scored, score)

    def commit(self, results: SequenceOf[Committed]) -> None:
        """Tell every drafter of a sequence, whether it proposed or not, unless it is closed."""
        for name, proposer in self._proposers.items():
            theirs = [
                result
                for result in results
                if (sequence := self._open.get(result.seq_id)) and name in sequence.drafters
            ]
            if theirs:
                proposer.commit(theirs)

    def close(self, sequence: Sequence) -> None:
        """Forget a sequence; one that was never opened is ignored."""
        if self._open.pop(sequence.seq_id, None) is not None:
            for name in sequence.drafters:
                self._proposers[name].close([sequence.seq_id])

    def disabled_reason(self, sequence: Sequence) -> str | None:
        """Why the preferred drafter of this sequence proposes nothing, or None; None, too, for one
        that ended before it was taken up."""
        if sequence.seq_id not in self._open:
            return None
        return self._proposers[sequence.drafters[0]].disabled_reason(sequence.seq_id)

    def shutdown(self) -> None:
        for proposer in self._proposers.values():
            proposer.shutdown()
