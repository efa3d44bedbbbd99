"""The paper's cells: the closed form by hand, the simulation against it, and what it must show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.simulation.renewal import tokens_per_round
from specdec.simulation.reproduction import checks
from specdec.simulation.reproduction.cells import (
    Bench,
    alike_requests,
    drafting_of,
    even_acceptance,
    setting_of,
)
from specdec.simulation.reproduction.checks import (
    dataset_of,
    recorded_curves,
    share_cells,
    tree_rows,
    tree_verdict,
)
from specdec.simulation.reproduction.machines import FITTED, machine
from specdec.simulation.reproduction.published import BATCHES, SPEEDUPS, Curve
from specdec.simulation.reproduction.steady import (
    NONE,
    Drafting,
    fit_tokens,
    speedup,
    step_time,
)
from specdec.simulation.traces import load_traces
from tests.unit.simulation.simulated import trace_line, write_trace

EAGLE = Drafting("eagle", 3)


def test_an_average_step_by_hand():
    # 64 sequences of GSM8K: contexts of 94 + 82.5, K = 3, two tokens a round.
    time = step_time(machine("llama-3-70b", "gsm8k"), "gsm8k", 64, EAGLE, 2.0)
    target = math.hypot(16, 0.065 * 256) + 2.5e-5 * 64 * 176.5
    prompts = 64 * 2 / 165 * 94 * 0.0535
    assert time.target_s == pytest.approx((target + prompts) / 1000, rel=1e-6)
    assert time.draft_s == pytest.approx(1.5e-3)
    assert time.around_s == pytest.approx(1.1e-3)
    off = step_time(machine("llama-3-70b", "gsm8k"), "gsm8k", 64, NONE, 1.0)
    assert off.draft_s == 0
    expected = 2 * off.total_s / time.total_s
    of = machine("llama-3-70b", "gsm8k")
    assert speedup(of, "gsm8k", 64, EAGLE, 2.0) == pytest.approx(expected)


def test_the_fit_finds_what_made_the_numbers():
    of = machine("llama-3.1-8b", "cnn")
    measured = {batch: speedup(of, "cnn", batch, EAGLE, 2.3) for batch in (1, 16)}
    assert fit_tokens(of, "cnn", EAGLE, measured) == pytest.approx(2.3, abs=1e-3)


def test_even_acceptance_gives_its_tokens():
    assert even_acceptance(0.7 + 0.49 + 0.343, 3) == pytest.approx(0.7)
    curve = next(c for c in SPEEDUPS if c.drafter == "ngram")
    requests = alike_requests(curve, 1.2, 0)
    assert tokens_per_round(requests, "ngram", 3) == pytest.approx(1.2, rel=0.02)
    share = np.mean([(each.offered["ngram"] > 0).mean() for each in requests])
    assert share == pytest.approx(drafting_of(curve).share, rel=0.05)


@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize(("drafter", "tokens"), [("eagle", 2.0), ("ngram", 1.2)])
def test_the_simulation_gives_what_the_closed_form_gives(drafter, tokens, batch):
    wanted = ("llama-3.1-8b", drafter, "gsm8k")
    curve = next(c for c in SPEEDUPS if (c.model, c.drafter, c.dataset) == wanted)
    setting = setting_of(curve, tokens, seed=0)
    simulated = Bench(0, lives=3.0).speedup(setting, batch)
    of = machine(curve.model, "gsm8k")
    expected = speedup(of, "gsm8k", batch, drafting_of(curve), tokens)
    assert simulated == pytest.approx(expected, rel=0.03)


def test_speed_ups_where_nothing_was_fitted_are_predicted():
    """The closed form stands for the simulation here, which takes a minute and more."""
    errors = []
    for curve in (curve for curve in SPEEDUPS if curve.model in FITTED):
        of, drafting = machine(curve.model, curve.dataset), drafting_of(curve)
        measured = dict(zip(BATCHES[:2], curve.speedups, strict=False))
        tokens = fit_tokens(of, curve.dataset, drafting, measured)
        for batch, published in zip(BATCHES[2:], curve.speedups[2:], strict=True):
            predicted = speedup(of, curve.dataset, batch, drafting, tokens)
            errors.append(abs(predicted / published - 1))
    assert len(errors) == 52
    assert np.mean(errors) <= 0.04
    assert max(errors) <= 0.10


def test_the_published_table_is_whole():
    assert len(SPEEDUPS) == 39
    assert len({(c.model, c.drafter, c.dataset, c.k) for c in SPEEDUPS}) == 39
    for curve in SPEEDUPS:
        assert len(curve.speedups) == len(BATCHES)
        assert list(curve.speedups) == sorted(curve.speedups, reverse=True)


def test_large_trees_lose_where_chains_do_not():
    assert tree_verdict(tree_rows()) == {
        "tree_of_21_below_1_at_64": True,
        "chain_above_1_at_64": True,
    }


def test_parts_of_the_time_are_whole_and_of_the_published_order():
    cells = share_cells()
    assert len(cells) == 44
    for cell in cells:
        assert sum(cell.simulated) == pytest.approx(100)
        assert sum(cell.published) == pytest.approx(100, abs=0.3)
    alone = [cell for cell in cells if cell.batch == 1]
    # Drafting weighs less than 8 points apart from what was measured for one sequence.
    assert max(abs(c.simulated[0] - c.published[0]) for c in alone) < 8


def test_lookup_offers_where_the_last_tokens_stand_earlier(tmp_path):
    # Text 7 8 9 | 7 8 9 1: before output position 3 the last three, 7 8 9, stand in the prompt.
    line = trace_line(ngram=[1, 1, 1, 2, 1]) | {
        "prompt_token_ids": [7, 8, 9],
        "generated_token_ids": [7, 8, 9, 1, 7],
    }
    path = write_trace(tmp_path / "gsm8k.jsonl", line)
    (request,) = load_traces([path], ("ngram",), lookup_tokens=3).requests
    assert (request.offered["ngram"] > 0).tolist() == [False, False, False, True, False]
    (plain,) = load_traces([path], ("ngram",)).requests
    assert not plain.offered


def test_recordings_are_held_against_the_curves_of_their_data_set(tmp_path):
    lines = [
        trace_line(20, 40, eagle=[1 + (i + j) % 4 for j in range(40)], ngram=[1] * 40)
        for i in range(6)
    ]
    path = write_trace(tmp_path / "my_CNN_traces.jsonl", *lines)
    assert dataset_of(path) == "cnn"
    assert dataset_of(tmp_path / "other.jsonl") is None


def test_recordings_are_played(tmp_path, monkeypatch):
    """At two batches: the larger ones take the longer, and the same way."""
    monkeypatch.setattr(checks, "BATCHES", BATCHES[:2])
    lines = [
        trace_line(20, 40, eagle=[1 + (i + j) % 4 for j in range(40)], ngram=[1] * 40)
        for i in range(6)
    ]
    path = write_trace(tmp_path / "cnn.jsonl", *lines)
    curves: dict[str, Curve] = {}
    for each in recorded_curves(path, 0):
        curves[each.curve.drafter] = each.curve
        if each.curve.drafter == "ngram":
            # Lookup that never gets a token accepted never gains.
            assert max(each.simulated) <= 1.01
    assert curves.keys() == {"ngram", "eagle"}
