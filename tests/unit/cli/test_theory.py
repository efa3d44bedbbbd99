"""`specdec theory`: figures, table, picture, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_json_has_the_worked_example(specdec):
    result = specdec.json("theory", "--alpha", 0.7, "--k", 4, "--cost", 0.05)
    # 1 + 0.7 + 0.49 + 0.343 + 0.2401, over 1 + 4 * 0.05.
    assert result["expected_tokens"] == 2.7731
    assert result["speedup"] == 2.3109
    assert result["least_gain"] == 1.619  # 1.7 / 1.05
    assert result["free_draft_limit"] == 3.3333
    assert result["asynchronous_limit"] == 2.8571  # 1 / (0.05 + 0.3)
    assert result["improves"] is True
    assert [row["k"] for row in result["by_k"]] == list(range(17))
    assert result["by_k"][4]["speedup"] == 2.3109
    assert "serving" not in result


def test_limits_without_end_are_null(specdec):
    result = specdec.json("theory", "--alpha", 1, "--k", 20, "--cost", 0)
    assert result["expected_tokens"] == 21
    assert result["free_draft_limit"] is result["hidden_draft_tokens"] is None
    assert result["by_k"][-1]["k"] == 20


def test_a_batch_is_priced_by_its_knee(specdec):
    result = specdec.json("theory", "--k", 3, "--batch", 64, "--knee", 295)
    # sqrt(1 + (256/295)^2) = 1.32406, + 3 * 0.05, over sqrt(1 + (64/295)^2) = 1.02326.
    assert result["serving"]["break_even_tokens"] == pytest.approx(1.47406 / 1.02326, abs=1e-4)
    assert result["serving"]["largest_free_k"] == 3


def test_the_table_says_what_never_pays(specdec):
    text = specdec("theory", "--alpha", 0.9, "--k", 2, "--cost", 1.5).stdout
    assert "never" in text
    assert "some K is faster than none" in text


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_written_and_reproducible(specdec, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for file in files:
        specdec("theory", "--plot", file)
    start = {"png": b"\x89PNG\r\n", "svg": b"<?xml"}[suffix]
    assert files[0].read_bytes().startswith(start)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alpha", "1.5"), "alpha must be between 0 and 1"),
        (("--alpha", "nan"), "alpha must be between 0 and 1"),
        (("--k", "129"), "k must be between 0 and 128"),
        (("--k", "-1"), "k must be between 0 and 128"),
        (("--cost", "-0.1"), "cost must be finite and at least 0"),
        (("--cost", "inf"), "cost must be finite and at least 0"),
        (("--network", "-1"), "network must be finite"),
        (("--arithmetic-cost", "nan"), "arithmetic_cost must be finite"),
        (("--hit-rate", "1.1"), "hit_rate must be between 0 and 1"),
        (("--knee", "0"), "knee must be finite and above 0"),
        (("--batch", "0", "--knee", "295"), "batch must be at least 1"),
    ],
)
def test_bad_input_names_the_field_and_writes_nothing(specdec, tmp_path, arguments, message):
    result = specdec("theory", *arguments, "--plot", tmp_path / "picture.svg", code=2)
    assert message in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"), [("a.jpg", "plot must end in .png or .svg"), ("no/a.svg", "no folder")]
)
def test_a_picture_that_cannot_be_written_is_refused_first(specdec, tmp_path, name, message):
    assert message in specdec("theory", "--plot", tmp_path / name, code=2).stderr


def test_a_disk_that_refuses_the_picture_is_told(specdec):
    """/proc takes no files, whoever asks."""
    assert "plot: cannot write" in specdec("theory", "--plot", "/proc/a.svg", code=2).stderr


def test_without_matplotlib_it_says_what_to_install(specdec, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = specdec("theory", "--plot", tmp_path / "picture.svg", code=2)
    assert "pip install 'specdec[plots]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_neither_torch_nor_matplotlib_is_loaded_for_figures():
    program = (
        "import sys\nfrom specdec.cli import main\n"
        "sys.argv = ['specdec', 'theory', '--json']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
