"""Acceptance estimates after a change, and with bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.speculation.controller.acceptance import (
    KEPT_AFTER_CHANGE,
    KNOWN_TRIALS,
    MAX_CLASSES,
    AcceptanceModel,
)
from tests.unit.speculation.controller.outcomes import draw

# -- changes -------------------------------------------------------------------------------------


def test_after_a_change_the_past_counts_as_a_few_proposals() -> None:
    """One cell only: after so many rejections an alarm leaves at most 4 proposals of it."""
    draws = np.random.default_rng(4)
    model = AcceptanceModel(1)
    seq_ids = list(range(8))
    for _ in range(100):
        model.record("draft", seq_ids, [1] * 8, [draw(draws, [0.8]) for _ in seq_ids])
    before = model.survival("draft", seq_ids)[:, 0].mean()
    assert before == pytest.approx(0.8, abs=0.05)
    steps = 0
    while model.num_changes() == {"draft": 0}:
        model.record("draft", seq_ids, [1] * 8, [0] * 8)
        steps += 1
    # 10 / (0.8 - 0.12) = 14.7 proposals: two steps of eight.
    assert steps == math.ceil(10 / (0.8 - 0.12) / 8) == 2
    # What gave the alarm is of the new times, and counts.
    assert model._counts("draft").cells[0].max() <= KEPT_AFTER_CHANGE + 8
    for _ in range(10):
        model.record("draft", seq_ids, [1] * 8, [0] * 8)
    assert model.survival("draft", seq_ids)[:, 0].mean() < 0.25


@pytest.mark.parametrize("batch", [1, 8, 32, 256])
def test_a_batch_that_is_rejected_whole_is_learned_from(batch: int) -> None:
    """An alarm in every step must not make it forget every step: believed 0.75, true 0."""
    model = AcceptanceModel(2)
    seq_ids = list(range(batch))
    for _ in range(max(3, 160 // batch)):
        model.record("draft", seq_ids, [2] * batch, [0] * batch)
    assert model.survival("draft", seq_ids)[:, 0].max() < 0.15


def test_only_a_success_in_doubt_is_worth_another_try() -> None:
    for alpha, in_doubt in ((0.1, True), (0.9, False)):
        model = trained(alpha, [1, 2])
        assert model.probed("draft", 1, was_accepted=True, alone=True) is in_doubt
        assert not model.probed("draft", 1, was_accepted=False, alone=True)


def trained(alpha: float, seq_ids: list[int], steps: int = 200) -> AcceptanceModel:
    draws = np.random.default_rng(2)
    model = AcceptanceModel(1)
    for _ in range(steps):
        model.record("draft", seq_ids, [1] * len(seq_ids), [draw(draws, [alpha]) for _ in seq_ids])
    return model


def test_one_lucky_probe_wipes_nothing() -> None:
    """Believed at most 0.1: one success in ten probes. It multiplies the likelihood of better times
    by 6 / (0.9 + 0.6) = 4 (by 4.5 at 0.067), and four make 256, more than the hundred it takes."""
    model = trained(0.1, [1, 2])
    before = model.survival("draft", [1, 2])
    assert 0.067 < before[0] < 0.1
    for _ in range(3):
        model.probed("draft", 1, was_accepted=True, alone=True)
        assert model.survival("draft", [1, 2]) == pytest.approx(before)
    model.probed("draft", 1, was_accepted=True, alone=True)
    assert model.survival("draft", [1, 2]).min() > 0.2


def test_failures_between_outweigh_successes_that_were_expected() -> None:
    """One in ten, as believed: 4 against 1.5^9 = 38."""
    model = trained(0.1, [1, 2])
    before = model.survival("draft", [1, 2])
    for was_accepted in ([True] + [False] * 9) * 20:
        model.probed("draft", 1, was_accepted, alone=True)
    assert model.survival("draft", [1, 2]) == pytest.approx(before)


def test_a_request_that_wakes_does_not_discredit_the_others() -> None:
    """One is accepted to 0.05 beside one of 0.9 that goes on drafting."""
    draws = np.random.default_rng(2)
    model = AcceptanceModel(1)
    for _ in range(200):
        model.record(
            "draft", [1, 2], [1, 1], [int(draws.random() < 0.05), int(draws.random() < 0.9)]
        )
    poor, good = model.survival("draft", [1, 2])[:, 0]
    cells = model._counts("draft").cells.copy()
    for _ in range(5):
        model.probed("draft", 1, was_accepted=True, alone=False)
    assert (model._counts("draft").cells == cells).all()
    assert model._request_counts[:, model._slots[1, "draft"]].tolist() == [0, 0]
    assert model.survival("draft", [2])[0, 0] == pytest.approx(good, abs=0.1)
    assert model.survival("draft", [1])[0, 0] > poor


def test_depth_is_known_after_so_many_trials() -> None:
    model = AcceptanceModel(2)
    for _ in range(int(KNOWN_TRIALS) + 1):
        assert not model.is_known("draft")[0]
        model.record("draft", [1], [2], [0])
    assert model.is_known("draft").tolist() == [True, False]


# -- bounded memory ------------------------------------------------------------------------------


def test_a_closed_request_starts_afresh() -> None:
    model = AcceptanceModel(1)
    for _ in range(50):
        model.record("draft", [1, 2, 3, 4], [1] * 4, [0, 1, 1, 1])
    bad = model.survival("draft", [1])[0, 0]
    for seq_id in (1, 1, 2, 3, 4, 99):
        model.close(seq_id)
    assert not model._slots
    again, new = model.survival("draft", [1, 55])[:, 0]
    assert again == new > bad + 0.3


def test_requests_that_are_never_closed_give_way_to_new_ones() -> None:
    model = AcceptanceModel(1, max_requests=4)
    for seq_id in range(100):  # as after aborts of which nobody told
        model.record("draft", [seq_id], [1], [0])
        model.record("ngram", [seq_id], [1], [1])
    assert list(model._slots) == [
        (seq_id, name) for seq_id in (98, 99) for name in ("draft", "ngram")
    ]
    assert sorted(model._slots.values()) == [0, 1, 2, 3]
    # One that was given up is a new one: like another that was never seen.
    assert model.survival("draft", [0])[0] == pytest.approx(model.survival("draft", [777])[0])


def test_classes_that_are_used_stay_when_others_come() -> None:
    """A tenant that is there all the time is not the one to be forgotten, though it came first."""
    model = AcceptanceModel(1)
    model.survival("draft", [0], ["steady"])
    for _ in range(100):
        model.record("draft", [0], [1], [0])
    seq_id = 1
    for number in range(3 * MAX_CLASSES):
        model.survival("draft", [seq_id, seq_id + 1], [f"tenant {number}", "steady"])
        seq_id += 2
    assert len(model._classes) == MAX_CLASSES
    assert sorted(model._classes.values()) == list(range(MAX_CLASSES))
    steady, new = model.survival("draft", [-1, -2], ["steady", "another"])[:, 0]
    assert steady < new
