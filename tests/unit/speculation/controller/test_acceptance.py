"""Acceptance estimates against counts made by hand, a plain re-computation from the whole history,
and the law that drew the outcomes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from specdec.speculation.controller.acceptance import (
    AcceptanceModel,
)
from tests.unit.speculation.controller.outcomes import draw

# What the estimator is defined by, written out once more: a changed constant is a changed estimate.
DRAFTER_DECAY, CLASS_DECAY, REQUEST_DECAY = 0.9999, 0.998, 0.98
PRIOR = {"draft": (0.75, 0.75, 0.78, 0.8), "ngram": (0.45, 0.7, 0.8, 0.85)}
CELL, REQUEST = {"draft": 16, "ngram": 4}, {"draft": 48, "ngram": 6}


def raised(acceptance: float, ratio: float) -> float:
    """The probability whose odds are `ratio` times as high."""
    odds = ratio * acceptance / (1 - acceptance)
    return odds / (1 + odds)


# -- by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["draft", "ngram"])
def test_an_unseen_drafter_has_its_prior(drafter: str) -> None:
    first, second, third, _ = PRIOR[drafter]
    survival = AcceptanceModel(3).survival(drafter, [1])[0]
    assert survival == pytest.approx([first, first * second, first * second * third])


def test_one_proposal_by_hand() -> None:
    """3 drafted, 1 accepted: a success at 1, a failure at 2, nothing known of 3."""
    model = AcceptanceModel(3)
    model.record("draft", [1], [3], [1])
    # 1 of the 0.75 + 0.75 that the prior made expect.
    of_class = float(Fraction(1 + 24) / (Fraction(3, 2) + 24))
    # Another request starts in the very cell that was seen: 16 pseudo-observations of the prior.
    fresh = [(1 + 16 * 0.75) / 17, (0 + 16 * 0.75) / 17, 0.78]
    other = [raised(acceptance, of_class) for acceptance in fresh]
    assert model.survival("draft", [2])[0] == pytest.approx(np.cumprod(other))
    # The first one is in another cell now, of which only the average over all others is known: 24.
    average = [(1 + 24 * 0.75) / 25, (0 + 24 * 0.75) / 25, 0.78]
    own_ratio = (1 + 48 * of_class) / (1.5 + 48)
    own = [raised(acceptance, own_ratio) for acceptance in average]
    assert model.survival("draft", [1])[0] == pytest.approx(np.cumprod(own))


def test_the_older_of_two_proposals_counts_less() -> None:
    """Accepted, then rejected. k = 1, a model's prior 0.75."""
    model = AcceptanceModel(1)
    model.record("draft", [1], [1], [1])
    # Now in the cell (1 accepted, run 0.15), believed from the one success elsewhere.
    believed = (1 + 24 * 0.75) / 25
    model.record("draft", [1], [1], [0])
    of_class = (0.998 * 1 + 0 + 24) / (0.998 * 0.75 + believed + 24)
    ratio = (0.98 * 1 + 0 + 48 * of_class) / (0.98 * 0.75 + believed + 48)
    # In (0 accepted, run 0.1275): the cells of both proposals are others, the older one decayed.
    table = (0.9999 * 1 + 24 * 0.75) / (0.9999 + 1 + 24)
    assert model.survival("draft", [1])[0, 0] == pytest.approx(raised(table, ratio))


def test_draft_tokens_behind_the_proposal_are_no_failures() -> None:
    """Two drafted and accepted say nothing against a third."""
    model = AcceptanceModel(3)
    model.record("draft", [1], [2], [2])
    trials = model._counts("draft").num_trials()
    assert trials == pytest.approx([1, 1, 0])


# -- against the whole history, by another road --------------------------------------------------


@dataclass
class Reference:
    """Keeps every proposal, and adds them up anew for each question. One drafter."""

    drafter: str
    max_k: int
    # (age in proposals of the drafter, cell, drafted, accepted)
    seen: list[tuple[int, tuple[int, int], int, int]] = field(default_factory=list)
    num_seen: int = 0
    # of each request and class: (steps or proposals of it so far, [(then, accepted, expected)])
    ratios: dict = field(default_factory=lambda: defaultdict(list))
    clock: dict = field(default_factory=lambda: defaultdict(int))
    history: dict = field(default_factory=lambda: defaultdict(list))

    def cell(self, seq_id: int) -> tuple[int, int]:
        outcomes = self.history[seq_id]
        if not outcomes:
            return 0, 0
        whole = list(itertools.takewhile(lambda o: o[0] == o[1], reversed(outcomes)))
        if whole:
            streak = sum(accepted for _, accepted in whole)
            buckets = [(1, 1), (2, 3), (4, 7), (8, 15), (16, 10**9)]
            outcome = 6 + next(i for i, (lo, hi) in enumerate(buckets) if lo <= streak <= hi)
        else:
            buckets = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 10**9)]
            last = outcomes[-1][1]
            outcome = 1 + next(i for i, (lo, hi) in enumerate(buckets) if lo <= last <= hi)
        run = sum(
            0.15 * 0.85**age * (accepted > 0)
            for age, (_, accepted) in enumerate(reversed(outcomes))
        )
        return outcome, sum(run > edge for edge in (0.03, 0.1, 0.25, 0.5))

    def counts(self, position: int, is_mine) -> tuple[float, float]:
        trials = successes = 0.0
        for then, cell, drafted, accepted in self.seen:
            if is_mine(cell) and position < min(accepted + 1, drafted):
                weight = DRAFTER_DECAY ** (self.num_seen - then)
                trials += weight
                successes += weight * (position < accepted)
        return trials, successes

    def table(self, cell: tuple[int, int], position: int) -> float:
        estimate = PRIOR[self.drafter][min(position, 3)]
        weight = CELL[self.drafter]
        for strength, is_mine in (
            (24, lambda other: other[0] != cell[0]),
            (2 * weight, lambda other: other[0] == cell[0] and other[1] != cell[1]),
            (weight, lambda other: other == cell),
        ):
            trials, successes = self.counts(position, is_mine)
            estimate = (successes + strength * estimate) / (trials + strength)
        return estimate

    def weighed(self, key, decay: float) -> tuple[float, float]:
        now = self.clock[key]
        rows = [(decay ** (now - then), a, e) for then, a, e in self.ratios[key]]
        return sum(w * a for w, a, _ in rows), sum(w * e for w, _, e in rows)

    def survival(self, seq_id: int, label: str) -> list[float]:
        accepted, expected = self.weighed(("class", label), CLASS_DECAY)
        of_class = (accepted + 24) / (expected + 24)
        accepted, expected = self.weighed(("request", seq_id), REQUEST_DECAY)
        weight = REQUEST[self.drafter]
        ratio = (accepted + weight * of_class) / (expected + weight)
        cell = self.cell(seq_id)
        own = [raised(min(self.table(cell, j), 0.999), ratio) for j in range(self.max_k)]
        return list(itertools.accumulate(own, lambda a, b: a * b))

    def record(self, rows: list[tuple[int, str, int, int]]) -> None:
        """(sequence, class, drafted, accepted) of one step."""
        expected = {
            seq_id: sum(
                self.table(self.cell(seq_id), j) for j in range(min(accepted + 1, drafted, 4))
            )
            for seq_id, _, drafted, accepted in rows
        }
        cells = {seq_id: self.cell(seq_id) for seq_id, *_ in rows}
        self.num_seen += len(rows)
        for label in {label for _, label, _, _ in rows}:
            self.clock["class", label] += sum(row[1] == label for row in rows)
        for seq_id, label, drafted, accepted in rows:
            self.seen.append((self.num_seen, cells[seq_id], drafted, accepted))
            self.history[seq_id].append((drafted, accepted))
            self.clock["request", seq_id] += 1
            for key in (("class", label), ("request", seq_id)):
                self.ratios[key].append((self.clock[key], min(accepted, 4), expected[seq_id]))


@pytest.mark.parametrize("drafter", ["draft", "ngram"])
def test_estimates_equal_sums_over_the_whole_history(drafter: str) -> None:
    draws = np.random.default_rng(11)
    model, reference = AcceptanceModel(6), Reference(drafter, 6)
    labels = {1: "a", 2: "a", 3: "b", 4: ""}
    alphas = {1: 0.9, 2: 0.5, 3: 0.2, 4: 0.7}
    model.survival(drafter, list(labels), list(labels.values()))
    for step in range(25):
        rows = []
        for seq_id in labels:
            if draws.random() < 0.7:
                drafted = int(draws.integers(1, 7))
                rows.append(
                    (seq_id, labels[seq_id], drafted, draw(draws, [alphas[seq_id]] * drafted))
                )
        if rows:
            seq_ids, _, drafted, accepted = zip(*rows, strict=True)
            model.record(drafter, seq_ids, drafted, accepted)
            reference.record(rows)
        if step % 4 == 0:
            expected = [reference.survival(seq_id, label) for seq_id, label in labels.items()]
            assert model.survival(drafter, list(labels)) == pytest.approx(np.array(expected))
    assert model.num_changes() == {drafter: 0}, "a change would have let the model forget"


# -- against the law that drew the outcomes ------------------------------------------------------


@pytest.mark.parametrize("acceptance", [[0.9, 0.5, 0.7, 0.3], [0.2, 0.9, 0.9, 0.9]])
def test_estimates_reach_the_law_of_the_outcomes(acceptance: list[float]) -> None:
    """The mean over 64 requests, but for chance and for what the prior still weighs."""
    draws = np.random.default_rng(5)
    model = AcceptanceModel(4)
    seq_ids = list(range(64))
    for _ in range(60):
        model.record("draft", seq_ids, [4] * 64, [draw(draws, acceptance) for _ in seq_ids])
    mean = model.survival("draft", seq_ids).mean(axis=0)
    assert mean == pytest.approx(np.cumprod(acceptance), abs=0.03)


def test_requests_of_one_drafter_are_told_apart() -> None:
    draws = np.random.default_rng(6)
    model = AcceptanceModel(4)
    believed = []
    for _ in range(300):
        accepted = [draw(draws, [alpha] * 4) for alpha in (0.95, 0.1)]
        model.record("draft", [1, 2], [4, 4], accepted)
        believed.append(model.survival("draft", [1, 2]))
    good, bad = np.mean(believed[100:], axis=0)
    assert good[0] == pytest.approx(0.95, abs=0.13)
    assert good[3] > 0.65
    assert bad[0] == pytest.approx(0.1, abs=0.1)
    assert bad[1] < 0.15, "positions hardly ever reached follow the request, not the others"


def test_a_class_tells_its_new_requests_what_to_expect() -> None:
    """Two tenants, 40 requests of 6 proposals each, acceptance 0.9 and 0.4."""
    draws = np.random.default_rng(8)
    model = AcceptanceModel(4)
    for start in range(0, 40, 4):
        seq_ids = list(range(start, start + 4))
        model.survival("draft", seq_ids, ["good", "poor"] * 2)
        for _ in range(6):
            accepted = [draw(draws, [alpha] * 4) for alpha in (0.9, 0.4) * 2]
            model.record("draft", seq_ids, [4] * 4, accepted)
    good, poor, unknown = model.survival("draft", [100, 101, 102], ["good", "poor", "new"])[:, 0]
    assert good - poor > 0.1, "true: 0.5; the rest is learned from the request itself"
    assert poor < unknown < good


def test_lookup_depends_on_what_came_before() -> None:
    """Bursts: a hit follows a hit nine times of ten, and a miss once in ten."""
    draws = np.random.default_rng(3)
    model = AcceptanceModel(2)
    accepted, believed = 0, {0: [], 2: []}
    for step in range(800):
        hit = draws.random() < (0.9 if accepted else 0.1)
        if step >= 200:
            believed[accepted].append(model.survival("ngram", [1])[0, 0])
        accepted = 2 if hit else 0
        model.record("ngram", [1], [2], [accepted])
    assert np.mean(believed[2]) == pytest.approx(0.9, abs=0.05)
    assert np.mean(believed[0]) == pytest.approx(0.1, abs=0.05)


def test_memoryless_outcomes_are_not_read_as_bursts() -> None:
    """Acceptance 0.6 of each token alone: what came before must not move a model's estimate far."""
    draws = np.random.default_rng(9)
    model = AcceptanceModel(2)
    seq_ids = list(range(32))
    for _ in range(100):
        model.record("draft", seq_ids, [2] * 32, [draw(draws, [0.6] * 2) for _ in seq_ids])
    table = model._counts("draft").acceptance()[:, 0]
    seen = model._counts("draft").cells[0, :, :, 0].reshape(-1) > 100
    assert seen.sum() >= 5
    assert np.abs(table[seen] - 0.6).max() < 0.1
