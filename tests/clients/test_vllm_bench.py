"""`vllm bench serve` against the demo: its acceptance table is filled from our /metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests.clients.speculation_counters import idle_counters
from tests.conftest import REPOSITORY

PYTHON = REPOSITORY / ".venv-vllm-bench" / "bin" / "python"
LAUNCHER = REPOSITORY / "tests" / "clients" / "vllm_bench_serve.py"
TIMEOUT_S = 400
NUM_PROMPTS, OUTPUT_LEN, K = 4, 24, 4


def bench(service, folder, backend: str, endpoint: str):
    """Its printed report and its JSON result."""
    if not PYTHON.exists():
        pytest.skip("run through make test-clients, which makes the environment")
    options = {
        "--backend": backend,
        "--endpoint": endpoint,
        "--base-url": service.http_url,
        "--model": service.model,
        "--tokenizer": service.folder,
        "--dataset-name": "random",
        "--random-input-len": 24,
        "--random-output-len": OUTPUT_LEN,
        "--num-prompts": NUM_PROMPTS,
        "--max-concurrency": 2,
        "--temperature": 0,
        "--seed": 7,
        "--extra-body": json.dumps({"speculation": {"mode": "fixed", "k": K}}),
        # A probe of readiness would count as a request of the service's.
        "--ready-check-timeout-sec": 0,
        "--result-dir": folder,
        "--result-filename": "result.json",
    }
    arguments = [str(part) for pair in options.items() for part in pair]
    ran = subprocess.run(
        [PYTHON, LAUNCHER, *arguments, "--ignore-eos", "--save-result", "--disable-tqdm"],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "*", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    return ran.stdout, json.loads((folder / "result.json").read_text())


def printed(report: str, label: str) -> float:
    return float(re.search(rf"^ *{re.escape(label)} +([\d.]+)", report, re.MULTILINE)[1])


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
)
def test_the_acceptance_table_agrees_with_our_metrics(service, tmp_path, backend, endpoint):
    before = idle_counters(service.http_url)
    report, result = bench(service, tmp_path, backend, endpoint)
    grown = idle_counters(service.http_url).since(before)

    assert (result["completed"], result["failed"]) == (NUM_PROMPTS, 0)
    assert result["total_output_tokens"] == grown.generated == NUM_PROMPTS * OUTPUT_LEN

    assert grown.drafts > 0
    assert result["spec_decode_num_drafts"] == grown.drafts
    assert result["spec_decode_draft_tokens"] == grown.drafted
    assert result["spec_decode_accepted_tokens"] == grown.accepted
    rate, length = 100 * grown.accepted / grown.drafted, 1 + grown.accepted / grown.drafts
    assert printed(report, "Acceptance rate (%):") == pytest.approx(rate, abs=0.005)
    assert printed(report, "Acceptance length:") == pytest.approx(length, abs=0.005)
    assert sum(grown.accepted_at) == grown.accepted
    for position, accepted in enumerate(grown.accepted_at):
        share = 100 * accepted / grown.drafts
        assert printed(report, f"Position {position}:") == pytest.approx(share, abs=0.005)
