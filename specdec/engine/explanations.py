"""Why requests got their K: kept for whoever asks by request id, and collected for the response.

Knows the controller by `explain` alone. What the controller forgets of a request is gone here too,
except for requests that asked at the start: theirs is collected step by step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specdec.sequence import Explanation, Sequence, SpeculationStats
from specdec.speculation.controller import Controller, SequenceResult

MAX_REQUESTS = 1000
# What one response carries at most, in decode steps: about 300 KiB of JSON.
MAX_COLLECTED = 1024


@dataclass(frozen=True, slots=True)
class Explained:
    """One sequence of a request. `finish_reason` is None while it runs; `num_steps` counts all its
    decode steps, of which `explanations` may hold the last only."""

    request_id: str
    partition: str
    finish_reason: str | None
    num_steps: int
    explanations: tuple[Explanation, ...]


@dataclass(slots=True)
class _Known:
    """What stays of a sequence; its counters only while it runs."""

    request_id: str
    partition: str
    stats: SpeculationStats | None
    num_steps: int = 0
    finish_reason: str | None = None

    def finish(self, finish_reason: str) -> None:
        assert self.stats is not None, "a sequence ends once"
        self.num_steps, self.finish_reason = self.stats.num_steps, finish_reason
        self.stats = None


class Explanations:
    """The last MAX_REQUESTS sequences by request id. `find` may be called from any thread, all else
    belongs to the engine's."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._known: dict[int, _Known] = {}
        self._asked: dict[int, list[Explanation]] = {}
        self._finishing: dict[int, list[Explanation]] = {}

    def begin(self, sequence: Sequence) -> None:
        """Remember a new sequence."""
        self._known[sequence.seq_id] = _Known(
            sequence.request_id, sequence.partition, sequence.stats
        )
        if len(self._known) > self._max_requests:
            del self._known[next(iter(self._known))]
        if sequence.params.speculation.explain:
            self._asked[sequence.seq_id] = []

    def finish(self, sequence: Sequence, finish_reason: str) -> list[Explanation] | None:
        """The sequence ends: what it collected, None where it did not ask.

        It ends before its last step is observed, so `collect` adds that step to the same list. A
        sequence that never came to a decode step has nothing to tell and is forgotten.
        """
        known = self._known.get(sequence.seq_id)
        if known is not None:
            known.finish(finish_reason)
            if known.num_steps == 0:
                del self._known[sequence.seq_id]
        collected = self._asked.pop(sequence.seq_id, None)
        if collected is not None:
            self._finishing[sequence.seq_id] = collected
        return collected

    def collect(self, results: Iterable[SequenceResult], controller: Controller) -> None:
        """After a step was observed: add it to what the sequences in it have collected."""
        if self._asked or self._finishing:
            for result in results:
                collectors = self._finishing if result.finished else self._asked
                collected = collectors.get(result.seq_id)
                if collected is not None:
                    collected.extend(controller.explain(result.seq_id, last_steps=1))
                    del collected[:-MAX_COLLECTED]
        self._finishing.clear()

    def find(self, request_id: str, controller: Controller) -> list[Explained]:
        """The sequences of a request: the one of this id, or its choices "ID-0", "ID-1" and so on;
        several, too, where a client used an id again."""
        found = []
        for seq_id, known in tuple(self._known.items()):
            if known.request_id == request_id or _is_choice(known.request_id, request_id):
                stats = known.stats
                found.append(
                    Explained(
                        request_id=known.request_id,
                        partition=known.partition,
                        finish_reason=known.finish_reason,
                        num_steps=known.num_steps if stats is None else stats.num_steps,
                        explanations=controller.explain(seq_id),
                    )
                )
        return found

    def clear(self) -> None:
        """Forget what has ended."""
        self._known = {i: known for i, known in self._known.items() if known.stats is not None}


def _is_choice(candidate: str, request_id: str) -> bool:
    base, _, index = candidate.rpartition("-")
    return base == request_id and index.isdecimal()
