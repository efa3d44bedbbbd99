"""`specdec characterize`: reproducible, right at temperature 0, and strict about its input."""

from __future__ import annotations

import csv
import json

import pytest

SMALL = ["--max-tokens", 10, "--k", 2, "--temperatures", "0,0.9", "--top-ps", "0.8,1"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "the cat sat on the mat and the cat sat", "category": "cats"},
        {"prompt": "once upon a time", "category": "tales"},
        {"prompt": "the dog ran and the dog ran", "category": "tales"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows_of(report, drafter, category="all"):
    rows = report["rows"]
    return [row for row in rows if (row["drafter"], row["category"]) == (drafter, category)]


def test_rows_for_every_drafter_category_and_cell(specdec, models, prompts):
    report = specdec.json(
        "characterize", "--prompts", prompts, *models, *SMALL, "--draft-layers", 1
    )
    drafters = list(dict.fromkeys(row["drafter"] for row in report["rows"]))
    assert drafters[1:] == ["first 1 layers", "ngram"]
    for drafter in drafters:
        for category, num_texts in (("cats", 1), ("tales", 2), ("all", 3)):
            rows = rows_of(report, drafter, category)
            cells = [(row["temperature"], row["top_p"]) for row in rows]
            assert cells == [(0.0, 1.0), (0.9, 0.8), (0.9, 1.0)]
            assert {row["num_texts"] for row in rows} == {num_texts}
    for row in rows_of(report, drafters[0]):
        assert row["coupled_bound"] <= row["coupled"] <= row["maximal"]
        assert row["sparse"] <= row["maximal"] + 1e-4


def test_the_engine_does_at_temperature_0_exactly_what_was_expected(specdec, models, prompts):
    """Nothing is sampled, so expected and measured lengths are the same numbers."""
    report = specdec.json(
        "characterize",
        *("--prompts", prompts, *models, "--draft-layers", 1, "--measure"),
        *("--temperatures", 0, "--top-ps", 1, "--max-tokens", 24, "--k", 3),
    )
    for row in report["rows"]:
        expected = row["length_coupled"]
        measured = (row["measured_coupled"], row["measured_rejection"], row["measured_block"])
        assert measured == (expected, expected, expected)
    assert max(row["length_coupled"] for row in report["rows"]) > 1.2


def test_the_engine_does_what_was_expected_when_sampling(specdec, models, tmp_path):
    """Over 16 seeds of one prompt the coupled length is within four standard errors, and the
    rejection rule's too."""
    path = tmp_path / "many.txt"
    path.write_text("the cat sat on\n" * 16)
    report = specdec.json(
        "characterize",
        *("--prompts", path, *models, "--no-ngram", "--measure"),
        *("--temperatures", 0.7, "--top-ps", 1, "--max-tokens", 24, "--k", 3),
    )
    (row,) = [row for row in report["rows"] if row["category"] == "all"]
    # A round's length lies in 1 .. 4; at most 16 * 20 / length rounds were counted.
    error = 1.5 / (16 * 20 / row["measured_coupled"]) ** 0.5
    assert row["measured_coupled"] == pytest.approx(row["length_coupled"], abs=4 * error)
    assert row["measured_rejection"] == pytest.approx(row["length_sparse"], abs=4 * error)
    assert row["length_coupled"] > 1.3


def test_files_hold_what_was_printed(specdec, models, prompts, tmp_path):
    pytest.importorskip("matplotlib")
    table, picture = tmp_path / "a.csv", tmp_path / "a.svg"
    arguments = ["characterize", "--prompts", prompts, *models, *SMALL, "--limit", 1]
    report = specdec.json(*arguments, "--output", table, "--plot", picture)
    with table.open() as lines:
        read = list(csv.DictReader(lines))
    assert [row["drafter"] for row in read] == [row["drafter"] for row in report["rows"]]
    assert [float(row["entropy"]) for row in read] == [row["entropy"] for row in report["rows"]]
    assert picture.read_bytes().startswith(b"<?xml")
    again = tmp_path / "b.csv"
    specdec(*arguments, "--output", again)
    assert again.read_bytes() == table.read_bytes()


def test_table_is_printed_with_the_columns_that_hold_something(specdec, models, prompts):
    printed = specdec("characterize", "--prompts", prompts, *models, *SMALL).stdout
    assert "maximal" in printed
    assert "ngram: mean acceptance length" in printed
    by_category = printed[printed.index("ngram: maximal acceptance at top-p 1") :].splitlines()
    assert by_category[1].split() == ["category", "0", "0.9"]
    assert [line.split()[0] for line in by_category[2:5]] == ["cats", "tales", "all"]
    assert "engine" not in printed


def test_shared_context_has_no_lengths(specdec, models, prompts):
    report = specdec.json(
        "characterize", "--prompts", prompts, *models, *SMALL, "--context-temperature", 0.5
    )
    assert report["context_temperature"] == 0.5
    assert {row["length_maximal"] for row in report["rows"]} == {None}
    assert len({row["num_positions"] for row in rows_of(report, "ngram")}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperatures", "hot"], "temperatures: must be numbers separated by commas"),
        (["--temperatures", "3"], "temperature: must be between 0 and 2"),
        (["--top-ps", "-0.5"], "top_p: must be between 0 and 1"),
        (["--top-ps", "1.5"], "top_p: must be between 0 and 1"),
        (["--seed", "9223372036854775808"], "seed: must be an integer of 64 bits"),
        (["--draft-layers", "2"], "between 1 and 1 of the 2 layers"),
        (["--max-tokens", "600"], "exceed the context of 512 tokens"),
        (["--plot", "a.txt"], ".png or .svg"),
        (["--output", "/no/such/folder/a.csv"], "no folder /no/such/folder"),
    ],
)
def test_bad_input_is_exit_status_2_and_writes_nothing(
    specdec, models, prompts, tmp_path, arguments, message
):
    table = tmp_path / "a.csv"
    result = specdec(
        *("characterize", "--prompts", prompts, *models, "--output", table, *arguments), code=2
    )
    assert message in result.stderr
    assert not table.exists()


def test_a_category_that_is_no_text_names_its_line(specdec, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "category": 3}\n')
    assert ":2: `category`" in specdec("characterize", "--prompts", path, code=2).stderr
