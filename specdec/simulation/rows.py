"""The decoding sequences of one replica, as arrays: what a step commits to each of them.

Knows what drafters would get accepted, and tells only what a verify pass reveals. Time, admission
and decisions are others' business.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.simulation.requests import Ints, Mask, SimulatedRequest
from specdec.speculation.controller.interface import Scored, SequenceResult, SequenceState


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did, [rows] each: accepted draft tokens, committed tokens, whether it ended."""

    num_accepted: Ints
    num_committed: Ints
    finished: Mask


class Rows:
    """Sequences in the order of admission.

    drafters: those that may propose, all of them for every sequence. local: those of them that cost
    nothing to ask, so that every committed token also says what they would have had accepted.
    """

    def __init__(self, drafters: tuple[str, ...], max_k: int, local: tuple[str, ...]) -> None:
        self._drafters = drafters
        self._local = tuple(name for name in drafters if name in local)
        self._max_k = max_k
        self._next_id = 0
        self.seq_ids: list[int] = []
        self.requests: list[SimulatedRequest] = []
        self.positions: Ints = np.zeros(0, dtype=np.int64)
        self._lens: Ints = np.zeros((2, 0), dtype=np.int64)  # prompt, output

    def __len__(self) -> int:
        return len(self.seq_ids)

    @property
    def num_kv_tokens(self) -> int:
        return int(self._lens[0].sum() + self.positions.sum())

    def add(self, request: SimulatedRequest, position: int = 0) -> int:
        """Take up a request whose prompt, and `position` tokens of its output, have been computed;
        returns its sequence id."""
        self._next_id += 1
        self.seq_ids.append(self._next_id)
        self.requests.append(request)
        self.positions = np.append(self.positions, position)
        lens = np.array([[request.prompt_len], [request.output_len]])
        self._lens = np.concatenate((self._lens, lens), axis=1)
        return self._next_id

    def states(self) -> list[SequenceState]:
        """What a controller may know. The end of a text is not known before it comes."""
        context_lens = (self._lens[0] + self.positions).tolist()
        preferred = self._drafters[0] if self._drafters else None
        max_k = self._max_k if self._drafters else 0
        return [
            SequenceState(seq_id, context_len, max_k, None, preferred)
            for seq_id, context_len in zip(self.seq_ids, context_lens, strict=True)
        ]

    def acceptable(self, drafter: str) -> Ints:
        """[rows]: how many draft tokens of this drafter would be accepted at this moment."""
        pairs = zip(self.requests, self.positions.tolist(), strict=True)
        return np.array([request.acceptable[drafter][at] for request, at in pairs], dtype=np.int64)

    def offered(self, drafter_of: SequenceOf[str | None], ks: Ints) -> Ints:
        """[rows]: what drafters that are asked for `ks` tokens come up with."""
        if not any(request.offered for request in self.requests):
            return ks
        most = [
            request.offered[drafter][at] if drafter and drafter in request.offered else k
            for request, drafter, at, k in zip(
                self.requests, drafter_of, self.positions.tolist(), ks.tolist(), strict=True
            )
        ]
        return np.minimum(np.array(most, dtype=np.int64), ks)

    def useful(self, max_k: int) -> Ints:
        """[drafters, rows]: how many draft tokens would be committed, at most `max_k`. The last
        token of a text is the target's own."""
        room = np.minimum(self._lens[1] - self.positions - 1, max_k)
        columns = [np.minimum(self.acceptable(name), room) for name in self._drafters]
        return np.stack(columns) if columns else np.zeros((0, len(self)), dtype=np.int64)

    def verify(self, drafter_of: SequenceOf[str | None], num_drafted: Ints) -> Outcome:
        """Advance every sequence by its accepted draft tokens and one token of the target's."""
        acceptable = np.zeros(len(self), dtype=np.int64)
        for name in self._drafters:
            mine = np.array([drafter == name for drafter in drafter_of], dtype=bool)
            if mine.any():
                acceptable[mine] = self.acceptable(name)[mine]
        num_accepted = np.minimum(acceptable, num_drafted)
        num_committed = np.minimum(num_accepted + 1, self._lens[1] - self.positions)
        self.positions = self.positions + num_committed
        return Outcome(num_accepted, num_committed, self.positions >= self._lens[1])

    def scores(self) -> dict[str, Ints]:
        """What local drafters would get accepted, to be asked before `verify`."""
        return {name: self.acceptable(name) for name in self._local}

    def results(
        self,
        drafter_of: SequenceOf[str | None],
        planned: SequenceOf[int],
        num_drafted: Ints,
        outcome: Outcome,
        scores: dict[str, Ints],
    ) -> list[SequenceResult]:
        """The step as a controller sees it; to be asked before finished sequences are dropped."""
        columns = zip(
            self.seq_ids,
            drafter_of,
            planned,
            num_drafted.tolist(),
            outcome.num_accepted.tolist(),
            outcome.num_committed.tolist(),
            outcome.finished.tolist(),
            self._scored(outcome, scores),
            strict=True,
        )
        return [
            SequenceResult(
                seq_id=seq_id,
                drafter=drafter,
                planned_k=k,
                num_draft_tokens=drafted,
                num_accepted_tokens=accepted,
                num_committed_tokens=committed,
                finished=bool(finished),
                scored=scored,
            )
            for seq_id, drafter, k, drafted, accepted, committed, finished, scored in columns
        ]

    def _scored(self, outcome: Outcome, scores: dict[str, Ints]) -> list[tuple[Scored, ...]]:
        """Committed tokens tell how far a drafter agreed with them, and no further."""
        if not scores:
            return [()] * len(self)
        committed = outcome.num_committed
        columns = [
            [
                Scored(name, compared, matching)
                for compared, matching in zip(
                    committed.tolist(), np.minimum(acceptable, committed).tolist(), strict=True
                )
            ]
            for name, acceptable in scores.items()
        ]
        return list(zip(*columns, strict=True))

    def drop(self, gone: Mask) -> list[int]:
        """Remove the rows that `gone` marks; returns their sequence ids."""
        kept = np.flatnonzero(~gone).tolist()
        ids = [self.seq_ids[row] for row in np.flatnonzero(gone).tolist()]
        self.seq_ids = [self.seq_ids[row] for row in kept]
        self.requests = [self.requests[row] for row in kept]
        self.positions, self._lens = self.positions[kept], self._lens[:, kept]
        return ids


def asked_of(drafter_of: SequenceOf[str | None], ks: SequenceOf[int]) -> dict[str, tuple[int, int]]:
    """drafter -> (deepest k, draft tokens), for those that draft anything."""
    asked: dict[str, tuple[int, int]] = {}
    for drafter, k in zip(drafter_of, ks, strict=True):
        if drafter is not None and k > 0:
            depth, tokens = asked.get(drafter, (0, 0))
            asked[drafter] = (max(depth, k), tokens + k)
    return asked
