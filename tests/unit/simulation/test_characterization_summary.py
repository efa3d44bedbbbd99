"""Rows: means, errors and lengths by hand; CSV; the picture."""

from __future__ import annotations

import csv
import io
import math

import pytest

from specdec.simulation.characterization.figure import draw
from specdec.simulation.characterization.overlap import Overlap
from specdec.simulation.characterization.study import Cell
from specdec.simulation.characterization.summary import Measured, Row, summarise, to_csv
from specdec.simulation.characterization.traces import Position, Trace

CELL = Cell(1.0, 0.9)


def position(maximal: float | None, entropy: float = 1.0) -> Position:
    if maximal is None:
        return Position(entropy, 3, None)
    return Position(entropy, 3, Overlap((maximal, 0.5, 0.4, 0.3), (), 0.2))


def trace(values, category="math", rounds=(6.0, 2.0), drafter="draft", cell=CELL) -> Trace:
    all_rounds = None if rounds is None else [rounds] * 4
    return Trace(drafter, category, cell, [position(v) for v in values], all_rounds)


def only(rows, category="all") -> Row:
    (row,) = [row for row in rows if row.category == category]
    return row


def test_positions_weigh_alike_and_the_error_counts_texts():
    row = only(summarise([trace([0.9, 0.5, 0.7]), trace([0.1])], [], k=4))
    assert row.maximal == pytest.approx(2.2 / 4)
    # Residuals by text: 2.1 - 0.55 * 3 = 0.45 and 0.1 - 0.55 = -0.45; times 2 / 1, over 4.
    assert row.maximal_error == pytest.approx(math.sqrt(2 * 2 * 0.45**2) / 4)
    assert (row.num_texts, row.num_positions, row.support) == (2, 4, 3.0)


def test_one_text_has_no_error():
    assert only(summarise([trace([0.9])], [], k=4)).maximal_error is None


def test_acceptance_is_over_positions_with_a_proposal():
    row = only(summarise([trace([0.8, None, None, 0.4])], [], k=2))
    assert row.coverage == pytest.approx(0.5)
    assert row.maximal == pytest.approx(0.6)
    # An unproposed position accepts nothing: 1 + a + a^2 with a = 0.3.
    assert row.length_geometric == pytest.approx(1.39)


def test_a_drafter_without_any_proposal_has_no_acceptance_and_length_one():
    row = only(summarise([trace([None, None], rounds=(5.0, 5.0))], [], k=4))
    assert row.maximal is None
    assert row.coverage == 0.0
    assert row.length_coupled == row.length_geometric == 1.0


def test_lengths_are_tokens_over_rounds_of_all_texts():
    rows = summarise([trace([0.5], rounds=(9.0, 3.0)), trace([0.5], rounds=(1.0, 1.0))], [], k=4)
    assert only(rows).length_maximal == pytest.approx(10 / 4)


def test_texts_sampled_elsewhere_have_no_length():
    row = only(summarise([trace([0.5], rounds=None)], [], k=4))
    assert row.length_maximal is None
    assert row.maximal == 0.5


def test_categories_come_in_order_with_all_last():
    rows = summarise([trace([0.9], "math"), trace([0.1], "code")], [], k=4)
    assert [row.category for row in rows] == ["math", "code", "all"]
    assert [row.maximal for row in rows] == pytest.approx([0.9, 0.1, 0.5])


def test_measured_lengths_go_to_their_drafter_category_and_cell():
    measured = [
        Measured("draft", "math", CELL, "block", 12, 4),
        Measured("draft", "code", CELL, "block", 4, 4),
        Measured("ngram", "math", CELL, "block", 99, 1),
        Measured("draft", "math", Cell(0.5, 0.9), "block", 99, 1),
    ]
    rows = summarise([trace([0.9], "math"), trace([0.1], "code")], measured, k=4)
    assert [row.measured_block for row in rows] == [3.0, 1.0, 2.0]
    assert only(rows).measured_coupled is None


def test_csv_has_every_row_and_leaves_the_undefined_empty():
    rows = summarise([trace([1 / 3, None])], [], k=4)
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert len(read) == 2
    assert read[1]["category"] == "all"
    assert read[1]["maximal"] == "0.3333"
    assert read[1]["measured_block"] == read[1]["maximal_error"] == ""


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_picture_has_a_panel_for_each_drafter_and_one_for_top_p(tmp_path, name, start):
    pytest.importorskip("matplotlib")
    cells = [Cell(0.0, 1.0), Cell(1.0, 0.7), Cell(1.0, 1.0)]
    traces = [trace([0.5], drafter=d, cell=cell) for d in ("draft", "ngram") for cell in cells]
    path = tmp_path / name
    draw(path, summarise(traces, [], k=4))
    written = path.read_bytes()
    assert written.startswith(start)
    if name.endswith("svg"):
        assert written.count(b'<g id="axes_') == 3
