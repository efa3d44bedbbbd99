"""`aiperf profile` against the demo: its report, and what it tells of speculation.

It reads acceptance of each request from our responses, as vLLM's server would report it, and
scrapes our /metrics beside.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.speculation_counters import Counters, idle_counters
from tests.conftest import REPOSITORY

AIPERF = REPOSITORY / ".venv-aiperf" / "bin" / "aiperf"
TIMEOUT_S = 400
NUM_REQUESTS, OUTPUT_LEN, K = 6, 24, 4


def profile(service, folder: Path) -> dict[str, Any]:
    """The report of a run, as it exports it; the files lie in `folder`."""
    if not AIPERF.exists():
        pytest.skip("run through make test-clients, which makes the environment")
    options = (
        *("--model", service.model, "--url", service.http_url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", service.folder),
        *("--request-count", NUM_REQUESTS, "--concurrency", 2, "--random-seed", 7),
        *("--synthetic-input-tokens-mean", 40, "--output-tokens-mean", OUTPUT_LEN),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
        *("--extra-inputs", json.dumps({"speculation": {"mode": "fixed", "k": K}})),
        # What two cores have to spare.
        *("--workers-max", 1, "--record-processors", 1, "--no-gpu-telemetry", "--ui", "none"),
        *("--artifact-dir", folder),
    )
    # With HF_HUB_OFFLINE it takes a folder for a name on the hub; a folder needs no hub.
    hub = {"HF_HUB_OFFLINE"}
    ran = subprocess.run(
        [str(AIPERF), "profile", *map(str, options)],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k not in hub}, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-2000:]}"
    return json.loads((folder / "profile_export_aiperf.json").read_text())


@dataclass(frozen=True)
class Run:
    """A run's report, what else it wrote, and what our own counters grew by meanwhile."""

    report: dict[str, Any]
    folder: Path
    grown: Counters


@pytest.fixture(scope="module")
def run(service, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("aiperf")
    before = idle_counters(service.http_url)
    report = profile(service, folder)
    return Run(report, folder, idle_counters(service.http_url).since(before))


def test_every_request_succeeds_with_the_tokens_asked_for(run):
    assert run.report["request_count"]["avg"] == NUM_REQUESTS
    assert not (run.report.get("error_request_count") or {}).get("avg")
    assert not run.report.get("error_summary")
    assert run.report["usage_completion_tokens"]["min"] == OUTPUT_LEN
    assert run.report["usage_completion_tokens"]["max"] == OUTPUT_LEN
    assert run.grown.generated == NUM_REQUESTS * OUTPUT_LEN


def test_its_acceptance_is_that_of_our_metrics(run):
    report, grown = run.report, run.grown
    assert grown.drafts > 0
    assert report["total_spec_decode_steps"]["avg"] == grown.drafts
    assert report["total_draft_tokens"]["avg"] == grown.drafted
    assert report["total_accepted_draft_tokens"]["avg"] == grown.accepted
    pooled = report["pooled_spec_decode_acceptance_histogram"]
    histogram = {int(accepted): steps for accepted, steps in pooled.items()}
    # A step that accepted j draft tokens accepted those at the first j positions.
    for position, accepted in enumerate(grown.accepted_at):
        assert sum(steps for j, steps in histogram.items() if j > position) == accepted


def test_it_collects_our_metrics(run):
    collected = json.loads((run.folder / "server_metrics_export.json").read_text())["metrics"]
    assert {"specdec_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"} <= set(collected)
