"""`specdec simulate` as it is typed: what it prints, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdec.cli.app import app
from tests.unit.simulation.simulated import random_requests, trace_line, write_trace

FIELDS = {
    "policy",
    "drafter",
    "concurrency",
    "steps",
    "seed",
    "num_unaligned",
    "goodput_tokens_per_s",
    "speedup_vs_off",
    "mean_k",
    "acceptance_rate",
    "k_changes_per_1000_steps",
}


@pytest.fixture
def trace(tmp_path):
    lines = [
        trace_line(
            request.prompt_len,
            request.output_len,
            **{name: (values + 1).tolist() for name, values in request.acceptable.items()},
        )
        for request in random_requests(8, 6, "eagle", "ngram")
    ]
    return str(write_trace(tmp_path / "trace.jsonl", *lines))


def invoke(*words: str):
    return CliRunner().invoke(app, ["simulate", *words])


def test_one_policy_is_one_flat_object(trace):
    words = ["--trace", trace, trace, "--drafter", "both", "--concurrency", "3", "--steps", "20"]
    result = invoke(*words, "--seed", "4", "--policy", "fixed:2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report.keys() >= FIELDS
    assert report["num_requests"] == 16
    assert (report["mean_k"], report["drafter"], report["steps"]) == (2, "both", 20)
    assert report["sequence_steps_by_k"] == {"2": 60}
    assert result.stdout == invoke(*words, "--seed", "4", "--policy", "fixed:2", "--json").stdout


def test_several_policies_are_a_table_with_ratios(trace):
    result = invoke(
        "--trace", trace, "--policy", "fixed:1", "--policy", "off", "--policy", "oracle",
        "--ramp", "1:4:1", "--steps", "30",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line}
    assert lines["off"][2] == "1.0000"
    assert float(lines["oracle"][2]) > float(lines["fixed:1"][2]) > 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--policy", "clever"], "unknown policy 'clever'; allowed are adaptive"),
        (["--policy", "fixed:17"], "fixed:K takes a whole K from 0 to 16"),
        (["--policy", "fixed:eagle:1", "--drafter", "ngram"], "'fixed:eagle:1' names a drafter"),
        (["--max-k", "300"], "max_k must be between 0 and 128"),
        (["--concurrency", "0"], "concurrency must be between 1 and"),
        (["--steps", "-5"], "steps must be between 1 and"),
        (["--seed", "-1"], "seed must be between 0 and"),
        (["--ramp", "1:x"], "ramp: takes whole numbers"),
        (["--ramp", "0:4"], "ramp: takes two or more concurrencies"),
    ],
)
def test_bad_input_is_named_and_nothing_is_printed(trace, words, named):
    result = invoke("--trace", trace, "--json", *words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert not result.stdout


def test_a_bad_line_is_named_by_its_number(tmp_path):
    path = write_trace(tmp_path / "t.jsonl", trace_line(eagle=[1]), "{}")
    result = invoke("--trace", str(path))
    assert result.exit_code == 2
    assert "t.jsonl line 2: prompt_token_ids" in result.stderr
    assert invoke().exit_code == 2


def test_torch_is_not_loaded(trace):
    code = (
        "import sys; from specdec.cli.app import app\n"
        f"try: app(['simulate', '--trace', {trace!r}, '--steps', '2', '--json'])\n"
        "except SystemExit as done: assert not done.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SERVICE = ("--workload", "gsm8k", "--drafter", "draft", "--cost", "llama-70b-tp4", "--max-k", "4")
SHORT = ("--duration", "4", "--warm-up", "1")
OPEN = (*SHORT, "--arrivals", "poisson:6")


def test_a_service_reports_latencies_and_cost():
    words = [*SERVICE, *SHORT, "--arrivals", "poisson:6", "--targets", "2", "--drafts", "1"]
    result = invoke(*words, "--gpu-hour-cost", "3", "--policy", "fixed:2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["gpus"] == 2 * 4 + 1
    per_hour = report["goodput_tokens_per_s"] * 3600
    assert report["cost_per_million_tokens"] == pytest.approx(27e6 / per_hour, rel=1e-3)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert report[name]["p50"] <= report[name]["p90"] <= report[name]["p99"]
    assert report["goodput_relative_standard_error"] == 0
    text = invoke(*words, "--policy", "fixed:2").stdout
    assert "2 targets and 1 drafts apart (9 GPUs)" in text


def test_a_sampled_service_states_its_error():
    result = invoke(
        *SERVICE, "--duration", "3600", "--warm-up", "1", "--sample", "3x2", "--targets", "40",
        "--arrivals", "day:60:160", "--policy", "off", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["num_sampled_targets"] == 4
    assert report["goodput_relative_standard_error"] > 0


def test_a_service_that_scales_reports_its_replicas(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scaled.svg"
    words = [*SERVICE, *OPEN, "--max-targets", "2", "--plot", str(picture), "--policy", "off"]
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["max_targets"] == 2
    assert (report["mean_targets"], report["most_targets"], report["most_drafts"]) == (1, 1, 0)
    assert report["num_target_changes"] == report["num_draft_changes"] == 0
    assert report["mean_gpus"] == pytest.approx(4, rel=0.3)
    assert picture.stat().st_size > 1000
    assert "targets mean/most" in invoke(*SERVICE, *OPEN, "--max-targets", "2").stdout


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_drawn(tmp_path, trace, suffix):
    pytest.importorskip("matplotlib")
    closed, service = (tmp_path / f"{name}.{suffix}" for name in ("closed", "service"))
    words = ["--ramp", "1:4", "--steps", "30", "--policy", "fixed:1"]
    assert invoke("--trace", trace, *words, "--plot", str(closed)).exit_code == 0
    words = [*SERVICE, *SHORT, "--concurrency", "2", "--policy", "off"]
    assert invoke(*words, "--plot", str(service)).exit_code == 0
    assert closed.stat().st_size > 1000
    assert service.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--duration", "-1"], "duration must be finite and above 0"),
        (["--duration", "nan"], "duration must be finite and above 0"),
        (["--duration", "1e20"], "duration must be at most 3.16"),
        ([*SHORT, "--warm-up", "1e20"], "warm_up must be at most 3.16"),
        ([*SHORT, "--warm-up", "-2"], "warm_up must be finite and at least 0"),
        ([*SHORT, "--arrivals", "poisson:-3"], "arrivals: 'poisson:-3' is none of"),
        ([*SHORT, "--network", "constant:-1"], "network: 'constant:-1' is none of"),
        ([*SHORT, "--drafts", "1", "--draft-down", "5:-1"], "draft_down: '5:-1' is no START:END"),
        ([*SHORT, "--drafts", "1", "--draft-down", "3@0:1"], "draft_down: there is no draft 3"),
        ([*SHORT, "--draft-down", "0:1"], "draft_down: there are no --drafts"),
        ([*SHORT, "--sample", "4"], "sample: '4' is no WxS"),
        ([*SHORT, "--sample", "4x2"], "sample: 4 windows of 2 s do not fit"),
        ([*SHORT, "--targets", "0"], "targets must be between 1"),
        ([*OPEN, "--targets", "2", "--max-targets", "1"], "max_targets must be at least the 2"),
        ([*OPEN, "--drafts", "1", "--max-drafts", "0"], "max_drafts must be at least the 1"),
        ([*OPEN, "--max-targets", "2", "--start-up", "-1"], "start_up must be finite"),
        ([*OPEN, "--max-targets", "2", "--sample", "1x5"], "sample: replicas that come and go"),
        ([*SHORT, "--max-targets", "2"], "max_targets: clients of a closed loop"),
        ([*SHORT, "--gpu-hour-cost", "-1"], "gpu_hour_cost must be finite"),
        ([*SHORT, "--policy", "oracle"], "policy: oracle looks at a batch"),
        ([*SHORT, "--policy", "fixed:9"], "fixed:K takes a whole K from 0 to 4"),
        ([*SHORT, "--ramp", "1:2"], "ramp: with --duration"),
        (["--arrivals", "poisson:1"], "arrivals: needs --duration"),
        (["--targets", "1"], "targets: needs --duration"),
        (["--max-drafts", "2"], "max_drafts: needs --duration"),
        ([*OPEN, "--start-up", "5"], "start_up: needs --max-targets or --max-drafts"),
        (["--cost", "abacus"], "cost: unknown machine 'abacus'"),
        (["--cost", "llama-8b"], "cost: llama-8b tells nothing of 'draft'"),
        (["--trace", "some.jsonl"], "trace: name files of traces, or a --workload"),
        ([*SHORT, "--plot", "picture.gif"], "plot must end in .png or .svg"),
    ],
)
def test_bad_services_are_named_and_nothing_is_printed(words, named):
    result = invoke(*SERVICE, "--json", *words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["1234.5678"], "reproduce: only 2601.11580 is known"),
        (["2601.11580", "--trace", "other.jsonl"], "the name of other.jsonl tells no data set"),
        (["2601.11580", "--trace", "missing_cnn.jsonl"], "cannot read missing_cnn.jsonl"),
        (["2601.11580", "--seed", "-1"], "seed must be between 0"),
    ],
)
def test_what_cannot_be_reproduced_is_named(words, named):
    result = invoke("--json", "--reproduce", *words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert not result.stdout


@pytest.mark.slow
def test_a_reproduction_prints_every_cell(monkeypatch):
    from specdec.cli import reproduce
    from specdec.simulation.reproduction import cells

    monkeypatch.setattr(cells, "SPEEDUPS", cells.SPEEDUPS[:1])
    runs = cells.run_curves(0, lambda: None)
    monkeypatch.setattr(reproduce, "run_curves", lambda seed, advance: runs)
    report = json.loads(invoke("--json", "--reproduce", "2601.11580").stdout)
    (curve,) = report["speedups"]
    for published, simulated, error in zip(
        curve["published"], curve["simulated"], curve["error"], strict=True
    ):
        assert error == pytest.approx(simulated / published - 1, abs=1e-3)
    assert len(report["shares"]) == 44
    assert len(report["trees"]) == 24
    assert len(report["flaws_not_repeated"]) == 5
    text = invoke("--reproduce", "2601.11580").stdout
    assert "every chain is faster: yes" in text
