"""`specdec plan` as it is typed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from specdec.cli.app import app
from specdec.simulation.planning import check

MACHINE = "llama-3.1-8b@h100+llama-3.2-1b"


def invoke(*words: str):
    return CliRunner().invoke(app, ["plan", *words])


def test_a_plan_is_one_object():
    result = invoke(MACHINE, "--rate", "40", "--tpot-ms", "12", "--gpu-hour-cost", "2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["layout"] == report["layouts"][0]["layout"]
    assert report["gpus"] == min(each["gpus"] for each in report["layouts"])
    assert report["k"][0] <= report["k_at_load"] <= report["k"][1]
    assert isinstance(report["disaggregation_pays_per_gpu"], bool)
    per_hour = 40 * report["output_tokens"] * 3600
    expected = 1e6 * report["gpus"] * 2 / per_hour
    assert report["cost_per_million_tokens"] == pytest.approx(expected, rel=1e-2)


def test_a_plan_is_said_in_words():
    text = invoke(MACHINE, "--rate", "40", "--tpot-ms", "12").stdout
    assert "targets" in text
    assert "per GPU" in text


def test_lookup_is_planned_where_there_is_no_draft():
    result = invoke("llama-3.1-8b@h100", "--rate", "5", "--workload", "instructcoder", "--json")
    report = json.loads(result.stdout)
    assert report["drafter"] == "ngram"
    assert {each["layout"] for each in report["layouts"]} == {
        "no speculation",
        "lookup in the target",
    }
    assert report["disaggregation_pays_per_gpu"] is None


def test_a_checked_plan_is_simulated(monkeypatch):
    monkeypatch.setattr(check, "SECONDS", 15.0)
    monkeypatch.setattr(check, "WARM_UP_S", 5.0)
    result = invoke(
        "llama-3.1-8b@h100",
        "--rate",
        "2",
        "--workload",
        "gsm8k",
        "--max-k",
        "2",
        "--check",
        "--json",
    )
    report = json.loads(result.stdout)
    checked = report["check"]
    offered = checked["offered_tokens_per_s"]
    assert checked["goodput_tokens_per_s"] == pytest.approx(offered, rel=0.4)
    assert 0 < checked["tpot_ms"]["p50"] <= report["tpot_ms"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["cray@h100", "--rate", "1"], "model: unknown 'cray'"),
        ([MACHINE, "--rate", "-1"], "rate must be finite and above 0"),
        ([MACHINE, "--rate", "1", "--tpot-ms", "0"], "tpot_ms must be finite and above 0"),
        ([MACHINE, "--rate", "1", "--tpot-ms", "0.5"], "tpot_ms: no layout is that fast"),
        ([MACHINE, "--rate", "1", "--network", "-1"], "network must be finite"),
        ([MACHINE, "--rate", "1", "--headroom", "1.5"], "headroom must be at most 1"),
        ([MACHINE, "--rate", "1", "--headroom", "1e-320"], "headroom must be at least 0.01"),
        ([MACHINE, "--rate", "1e300"], "rate must be at most 1e+09"),
        ([MACHINE, "--rate", "1", "--max-k", "99"], "max_k must be between 0 and 32"),
        ([MACHINE, "--rate", "1", "--workload", "x"], "workload: unknown workload 'x'"),
        ([MACHINE, "--rate", "1", "--drafter", "ngram"], "drafter: ngram does not belong"),
        (["llama-3.1-70b@h100", "--rate", "1"], "do not fit into 1 GPUs"),
    ],
)
def test_bad_input_is_named_and_nothing_is_printed(words, named):
    result = invoke(*words, "--json")
    assert result.exit_code == 2
    assert named in result.stderr
    assert not result.stdout
