"""`specdec explain`, and generate --explain: what came over the wire, as a table and as JSON."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from scripted_inference import scripted_server

from specdec.v1 import inference_pb2

BELOW = "position 3 would be accepted with 0.31, below the price 0.38"


def explanation(step, **given):
    return inference_pb2.Explanation(
        **{
            "step": step,
            "time_s": 100.0 + step / 50,
            "phase": "on",
            "drafter": "draft",
            "k": 2,
            "num_draft_tokens": 2,
            "num_accepted_tokens": 1,
            "survival": [0.8, 0.5, 0.31],
            "shadow_price": 0.38,
            "depth_price": 0.25,
            "predicted_speedup": 1.4,
            "guard_ratio": 1.1,
            "reason": BELOW,
            **given,
        }
    )


@pytest.fixture
def server():
    with scripted_server() as running:
        running.replies["Explain"] = lambda request, context: inference_pb2.ExplainResponse(
            sequences=[
                inference_pb2.ExplainedSequence(
                    request_id="r1",
                    replica_id="replica-7",
                    finish_reason=inference_pb2.FINISH_REASON_STOP,
                    num_steps=5,
                    explanations=[
                        explanation(40),
                        explanation(41, k=0, drafter="", phase="baseline", survival=[],
                                    num_draft_tokens=0, num_accepted_tokens=0, reason="baseline"),
                        explanation(43, num_accepted_tokens=2),
                    ],
                )
            ]
        )  # fmt: skip
        yield running


def test_the_table_has_a_line_for_each_step_and_a_summary(specdec, server):
    result = specdec("explain", "r1", "--address", server.address, "--api-key", "secret")
    lines = result.stdout.splitlines()
    assert lines[0] == "r1  stop, on replica-7"
    assert lines[1] == "the log reaches the last 3 of 5 decode steps"
    assert lines[2].split() == [
        "step", "ms", "drafter", "k", "drafted", "accepted", "survival", "price", "speedup",
        "reason",
    ]  # fmt: skip
    assert lines[3].split() == [
        "40", "0", "draft", "2", "2", "1", ".80", ".50", ".31", "0.38", "+", "0.25", "1.40",
        *BELOW.split(),
    ]  # fmt: skip
    assert lines[4].split() == ["41", "20", "-", "0", "0", "0", "-", "-", "-", "baseline"]
    assert lines[5].split()[:2] == ["43", "60"]
    # k 2, 0, 2; 4 drafted of which 3 accepted.
    assert lines[-1] == (
        "3 decode steps: mean k 1.33; 4 drafted, 3 accepted (75%); phases: on 2, baseline 1"
    )
    assert server.requests[-1].request_id == "r1"
    assert server.metadata[-1]["authorization"] == "Bearer secret"


def test_json_has_what_came(specdec, server):
    (sequence,) = specdec.json("explain", "r1", "--address", server.address)["sequences"]
    assert (sequence["request_id"], sequence["replica_id"]) == ("r1", "replica-7")
    assert (sequence["finish_reason"], sequence["num_steps"]) == ("stop", 5)
    first, second, _ = sequence["explanations"]
    assert first == {
        "step": 40,
        "time_s": 100.8,
        "phase": "on",
        "drafter": "draft",
        "k": 2,
        "num_draft_tokens": 2,
        "num_accepted_tokens": 1,
        "survival": [0.8, 0.5, 0.31],
        "shadow_price": 0.38,
        "depth_price": 0.25,
        "predicted_speedup": 1.4,
        "guard_ratio": 1.1,
        "reason": BELOW,
    }
    assert second["drafter"] is None
    assert second["num_draft_tokens"] == 0


def test_a_running_step_has_no_outcome_yet(specdec, server):
    running = explanation(9)
    running.ClearField("num_draft_tokens")
    running.ClearField("num_accepted_tokens")
    server.replies["Explain"] = lambda request, context: inference_pb2.ExplainResponse(
        sequences=[
            inference_pb2.ExplainedSequence(request_id="a", num_steps=0, explanations=[running]),
            inference_pb2.ExplainedSequence(request_id="b", num_steps=0),
        ]
    )
    lines = specdec("explain", "r1", "--address", server.address).stdout.splitlines()
    assert lines[0].startswith("a  running")
    assert lines[2].split()[3:6] == ["2", "-", "-"]
    assert lines[-1] == "no decode step yet"


def test_an_unknown_request_is_bad_input(specdec, server):
    def refuse(request, context):
        status = status_pb2.Status(code=5, message="request 'x' is not known")
        info = error_details_pb2.ErrorInfo(reason="REQUEST_NOT_FOUND", domain="specdec")
        status.details.add().Pack(info)
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(grpc.StatusCode.NOT_FOUND, status.message)

    server.replies["Explain"] = refuse
    result = specdec("explain", "x", "--address", server.address, code=2)
    assert "request 'x' is not known" in result.stderr
    assert result.stdout == ""


def test_generate_explains_in_process_and_from_a_server(specdec, server, models):
    asked = ("generate", "the cat sat on the cat sat", "--max-tokens", 12, "--explain")
    local = specdec.json(*asked, *models)["speculation"]
    assert len(local["explanations"]) == local["num_steps"] > 0
    assert (
        sum(e["num_accepted_tokens"] for e in local["explanations"])
        == (local["num_accepted_tokens"])
    )
    last = inference_pb2.GenerateResponse(finish_reason=inference_pb2.FINISH_REASON_STOP)
    last.speculation.explanations.append(explanation(40))
    server.replies["Generate"] = lambda request, context: iter([last])
    server.replies["GetModel"] = lambda request, context: inference_pb2.GetModelResponse(model="m")
    result = specdec(*asked, "--address", server.address)
    assert BELOW in result.stderr
    assert "1 decode steps: mean k 2.00" in result.stderr
    (request,) = (r for r in server.requests if isinstance(r, inference_pb2.GenerateRequest))
    assert request.speculation.explain
    silent = specdec.json("generate", "the cat", "--max-tokens", 4, *models)
    assert silent["speculation"]["explanations"] == []


def test_the_command_needs_no_torch(server):
    code = (
        "import sys; from specdec.cli.app import app\n"
        f"try: app(['explain', 'r1', '--address', '{server.address}'])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert BELOW in result.stdout
