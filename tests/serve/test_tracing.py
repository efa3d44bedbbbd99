"""One request's spans from three deployments, as a collector receives them, and its log line."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import ray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from deployments.settings import TracingSettings
from tests.serve.harness import READY_TIMEOUT_S, settings, wait_until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps (service name, span) of all that is sent to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[tuple[str, object]] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.server.spans += [(attributes["service.name"], s) for s in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    server = Collector()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def traced(deploy, collector, tiny_llama, tiny_draft):
    base = settings(tiny_llama, tiny_draft)
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    service = deploy(
        "traced",
        base.model_copy(
            update={
                "tracing": TracingSettings(
                    enabled=True, sample_ratio=0.0, step_every=1, endpoint=endpoint
                ),
                "log_format": "json",
                "gateway": base.gateway.model_copy(update={"log_requests": True}),
            }
        ),
    )
    wait_until(lambda: service.describe().draft_loads, READY_TIMEOUT_S, "a connected draft")
    return service


def complete(service, **headers: str):
    """Long enough for the draft to come in on a busy machine."""
    return service.openai().completions.create(
        model="tiny",
        prompt="the cat sat on the mat",
        max_tokens=100,
        temperature=0,
        extra_headers=headers,
        extra_body={
            "ignore_eos": True,
            "speculation": {"mode": "fixed", "k": 2, "drafter": "draft"},
        },
    )


def drafted(answer) -> int:
    return answer.metrics["speculative_decoding"]["num_draft_tokens"]


def test_a_request_is_one_trace_over_gateway_target_and_draft(traced, collector):
    wait_until(lambda: drafted(complete(traced)) > 0, READY_TIMEOUT_S, "a working draft")
    answer = complete(traced, traceparent=CALLER)
    assert drafted(answer) > 0
    traced.openai().completions.create(model="tiny", prompt="untraced", max_tokens=4)
    wanted = {"specdec-gateway", "specdec-target", "specdec-draft"}
    wait_until(
        lambda: wanted <= {name for name, _ in collector.spans},
        READY_TIMEOUT_S,
        "spans of all three",
    )
    assert {span.trace_id.hex() for _, span in collector.spans} == {CALLER[3:35]}
    by_service = dict(collector.spans)
    gateway, target = by_service["specdec-gateway"], by_service["specdec-target"]
    assert gateway.parent_span_id.hex() == CALLER[36:52]
    assert target.parent_span_id == gateway.span_id
    assert by_service["specdec-draft"].parent_span_id == target.span_id
    assert len(target.events) == 1 + answer.metrics["speculative_decoding"]["num_decode_steps"]


def test_the_log_has_the_requests_id_and_its_traces_as_fields(traced):
    answer = traced.openai().completions.create(
        model="tiny", prompt="hello", max_tokens=4, extra_headers={"traceparent": CALLER}
    )
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = [*(session / "logs" / "serve").glob("replica_traced_Gateway_*.log")]
    assert logs

    def found() -> list[dict]:
        lines = [json.loads(line) for log in logs for line in log.read_text("utf-8").splitlines()]
        return [each for each in lines if each.get("response_id") == answer.id]

    wait_until(found, READY_TIMEOUT_S, "the line")
    (line,) = found()
    assert line["trace_id"] == CALLER[3:35]
    assert line["outcome"] == "ok"
