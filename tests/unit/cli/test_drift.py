"""`specdec drift`: what it prints, what its JSON holds, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specdec.speculation.controller.acceptance_log import AcceptanceLog
from tests.unit.simulation.drift_logs import dropped, given_up, hour


@pytest.fixture
def write(tmp_path):
    def written(records, name: str = "acceptance.jsonl"):
        AcceptanceLog(tmp_path / name).append(records)
        return tmp_path / name

    return written


def test_the_arithmetic_is_shown(specdec, write):
    file = write(dropped())
    arguments = ("--gpus", 4, "--gpu-hour-cost", 2.5, "--retrain-gpu-hours", 48)
    text = specdec("drift", file, *arguments).stdout
    for line in (
        "draft, greedy: dropped",
        "then  first draft token accepted 0.8000 (0.7999 to 0.8001)",
        "now   first draft token accepted 0.6000 (0.5999 to 0.6001)",
        "dropped since about 2026-12-08T01:00Z",
        "tokens per step: 1.9000 now, 2.2000 with the acceptance of then",
        "24000000 * 1.9000 / 2.2000 = 20727273 would do",
        "3272727 steps * 0.001000 s * 4 GPUs / 3600 = 3.6364 GPU-hours per day",
        "draft loses 3.6364 GPU-hours per day, at 2.5 each 9.09",
        "retraining takes 48 GPU-hours (120.00): paid back after 13.2 days",
        "draft: retrain: it pays back within 90 days",
    ):
        assert line in text
    assert "at most" not in text


def test_two_bounds_are_shown_where_k_has_changed(specdec, write):
    text = specdec("drift", write(given_up()), "--retrain-gpu-hours", 48).stdout
    assert "draft loses 0.3333 to 2.3182 GPU-hours per day" in text
    assert "paid back after 20.7 to 144.0 days" in text
    assert "open: it may or may not pay back" in text


def test_json_holds_the_same(specdec, write):
    result = specdec.json("drift", write(dropped()), "--gpus", 4, "--gpu-hour-cost", 2.5)
    (drift,) = result["classes"]
    assert drift["at_least"]["gpu_hours_per_day"] == pytest.approx(3.636364)
    assert drift["now"]["tokens_per_step"] == pytest.approx(1.9)
    (verdict,) = result["verdicts"]
    assert verdict["cost_per_day"] == [pytest.approx(9.090909)] * 2
    assert verdict["payback_days"] is None
    assert "--retrain-gpu-hours" in verdict["verdict"]


def test_files_of_several_engines_count_together(specdec, write):
    files = [write(dropped(500_000), f"engine {n}.jsonl") for n in range(2)]
    (drift,) = specdec.json("drift", *files)["classes"]
    assert drift["at_least"]["steps_per_day"] == pytest.approx(24e6)


def test_too_few_data_is_no_error(specdec, write):
    text = specdec("drift", write([hour(0, 100, (0.5,), 0.001)])).stdout
    assert "too few data" in text
    result = specdec.json("drift", write([hour(1, 100, (0.5,), 0.001)]))
    assert result["verdicts"][0]["gpu_hours_per_day"] is None


def test_shorter_windows_can_be_asked_for(specdec, write):
    records = [hour(n, 1000, (0.8 if n < 30 else 0.4,), 0.001) for n in range(48)]
    short = ("--reference-days", 1, "--recent-days", 0.5)
    (drift,) = specdec.json("drift", write(records), *short)["classes"]
    assert drift["status"] == "dropped"
    assert drift["dropped_since"] == "2026-12-02T06:00Z"


def test_a_line_that_a_crash_cut_short_is_named_and_left_out(specdec, write):
    file = write(dropped())
    file.write_bytes(file.read_bytes()[:-9])
    result = specdec("drift", file, "--json")
    assert "line 360: cut short" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--gpus", 0, "gpus must be at least 1"),
        ("--gpu-hour-cost", "nan", "gpu_hour_cost must be finite"),
        ("--gpu-hour-cost", -1, "gpu_hour_cost must be finite and at least 0"),
        ("--retrain-gpu-hours", "inf", "retrain_gpu_hours must be finite"),
        ("--horizon-days", 0, "horizon_days must be finite and above 0"),
        ("--reference-days", -1, "reference_days must be finite and above 0"),
        ("--recent-days", 0, "recent_days must be finite and above 0"),
    ],
)
def test_bad_numbers_are_named(specdec, write, option, value, message):
    result = specdec("drift", write(dropped()), option, value, code=2)
    assert message in result.stderr
    assert result.stdout == ""


def test_bad_files_are_named(specdec, write, tmp_path):
    file = write(dropped())
    assert "named twice" in specdec("drift", file, file, code=2).stderr
    assert "cannot be read" in specdec("drift", tmp_path / "no", code=2).stderr
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "no record of a drafter" in specdec("drift", empty, code=2).stderr
    only_plain = write([hour(0, 10, (), 0.001, drafter=None)], "plain.jsonl")
    assert "no record of a drafter" in specdec("drift", only_plain, code=2).stderr
    with file.open("a") as log:
        log.write('{"format": 1, "start": -5}\n')
    error = specdec("drift", file, code=2).stderr
    assert "acceptance.jsonl, line 361: start must be a time" in error


def test_torch_is_not_loaded(write):
    program = (
        "import sys\nfrom specdec.cli import main\n"
        f"sys.argv = ['specdec', 'drift', {str(write(dropped(1000)))!r}, '--json']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'ray') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
