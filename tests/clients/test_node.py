"""gRPC from another language: Node's @grpc/grpc-js, which knows the service by protos/ alone."""

from __future__ import annotations

import base64
import json
import subprocess
import time

import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2
from transformers import AutoTokenizer

from tests.clients.conftest import HERE
from tests.clients.speculation_counters import idle_counters
from tests.conftest import REPOSITORY

PROGRAM = HERE / "node" / "call.js"
PROTOS = REPOSITORY / "protos"
TIMEOUT_S = 120
PROMPT = "Once upon a time"
ENDLESS = {"text": PROMPT, "sampling": {"max_tokens": 1000, "ignore_eos": True}}


@pytest.fixture
def call(node, service):
    """call(method, request, deadline_ms, cancel_after_messages) -> what the program printed."""
    if not (HERE / "node" / "node_modules").exists():
        pytest.skip("run through make test-clients, which installs its packages")

    def run(method, request, deadline_ms=60_000, cancel_after=0):
        arguments = (PROTOS, service.grpc_address, method, json.dumps(request))
        ran = subprocess.run(
            [node, PROGRAM, *arguments, str(deadline_ms), str(cancel_after)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def violations(outcome) -> list[str]:
    """Names of the fields at fault, of google.rpc.BadRequest in the rich status."""
    status = status_pb2.Status.FromString(base64.b64decode(outcome["rich_status"]))
    found = error_details_pb2.BadRequest()
    assert any(detail.Unpack(found) for detail in status.details)
    return [violation.field for violation in found.field_violations]


def test_a_stream_says_what_http_says(call, service):
    http = httpx.post(
        f"{service.http_url}/v1/completions",
        json={"model": service.model, "prompt": PROMPT, "max_tokens": 20, "temperature": 0},
        timeout=60,
        trust_env=False,
    ).json()
    request = {
        "text": PROMPT,
        "sampling": {"max_tokens": 20, "temperature": 0},
        "speculation": {"mode": "SPECULATION_MODE_FIXED", "k": 4},
    }
    outcome = call("Generate", request)
    *steps, last = outcome["messages"]
    assert outcome["code"] == "OK"
    assert len(steps) > 1
    text = "".join(message["text"] for message in outcome["messages"])
    assert text == http["choices"][0]["text"]
    assert last["finish_reason"] == "FINISH_REASON_LENGTH"
    assert last["usage"]["num_output_tokens"] == 20
    assert last["speculation"]["num_draft_tokens"] > 0


def test_unary_methods(call, service):
    tokenizer = AutoTokenizer.from_pretrained(service.folder)
    (tokens,) = call("Tokenize", {"text": PROMPT})["messages"]
    assert tokens["token_ids"] == tokenizer.encode(PROMPT)
    (model,) = call("GetModel", {})["messages"]
    assert model["model"] == service.model


@pytest.mark.parametrize("method", ["Generate", "Complete"])
def test_a_refused_request_names_its_field(call, method):
    sampling = {"temperature": 9}
    request = {"text": PROMPT, "sampling": sampling}
    outcome = call(method, request if method == "Generate" else {"request": request})
    assert outcome["code"] == "INVALID_ARGUMENT"
    assert "temperature" in outcome["details"]
    assert violations(outcome) == ["temperature"]


def test_an_unknown_model(call):
    assert call("GetModel", {"model": "gpt-9"})["code"] == "NOT_FOUND"


def test_a_deadline_ends_the_call_and_the_request(call, service):
    began_s = time.monotonic()
    outcome = call("Generate", ENDLESS, deadline_ms=1500)
    assert outcome["code"] == "DEADLINE_EXCEEDED"
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    idle_counters(service.http_url)


def test_a_cancelled_stream_leaves_nothing_running(call, service):
    outcome = call("Generate", ENDLESS, cancel_after=2)
    assert outcome["code"] == "CANCELLED"
    assert len(outcome["messages"]) >= 2
    before = idle_counters(service.http_url)
    assert idle_counters(service.http_url).since(before).generated == 0
