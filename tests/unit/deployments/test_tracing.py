"""Spans of one request over all its hops, in memory: who is whose parent, and what is told."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import AsyncGenerator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from ray._common.formatters import JSONFormatter

from deployments.draft_traces import DraftTraces
from deployments.request_records import Call, RequestRecords
from deployments.settings import TracingSettings
from deployments.target_traces import TargetTraces
from deployments.tracing import start_tracing, tracing_to
from specdec.engine.request import GenerateRequest
from specdec.errors import ConfigError, OverloadedError
from specdec.params import SamplingParams
from specdec.sequence import RequestMetrics, SequenceOutput, SpeculationStats, Verification
from specdec.speculation.messages import Close, Commit, Open, Proposal

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-1] + "0"
NUM_STEPS = 10


class Spans:
    """A replica's tracing, and what it has sent."""

    def __init__(self, role: str, sample_ratio: float = 1.0, step_every: int = 4) -> None:
        self.exporter = InMemorySpanExporter()
        settings = TracingSettings(enabled=True, sample_ratio=sample_ratio, step_every=step_every)
        self.tracing = tracing_to(SimpleSpanProcessor(self.exporter), settings, role, "r1")

    def all(self) -> list:
        return list(self.exporter.get_finished_spans())

    def one(self):
        (span,) = self.all()
        return span


def metrics(num_output_tokens: int = NUM_STEPS) -> RequestMetrics:
    stats = SpeculationStats()
    for _ in range(num_output_tokens - 1):
        stats.record(2, 0, 1)
    return RequestMetrics(
        *("auto", Verification.GREEDY, "draft", None, None, 4, stats, 3, num_output_tokens),
        *(0, 0, 0.1, 0.5, 2.0),
    )


class Target:
    """Stands where the target client stands: a request is pickled on its way, as Serve does it."""

    def __init__(self, spans: Spans | None, error: Exception | None = None) -> None:
        self.traces = TargetTraces(spans.tracing if spans else None)
        self.error = error
        self.arrived: list[GenerateRequest] = []
        self.in_engine: list[str] = []

    async def merged(self, requests) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        for index, request in enumerate(requests):
            received = pickle.loads(pickle.dumps(request))
            self.arrived.append(received)
            async for output in self.traces.outputs(received, self.generate):
                yield index, output

    async def generate(self, request) -> AsyncGenerator[SequenceOutput, None]:
        self.in_engine.append(request.traceparent)
        for step in range(NUM_STEPS):
            if self.error is not None and step == 2:
                raise self.error
            output = SequenceOutput(1, request.request_id, [step], draft_token_ids=[7, 8])
            if step == NUM_STEPS - 1:
                output.finish_reason, output.metrics = "stop", metrics()
            yield output


def request(name: str = "r") -> GenerateRequest:
    return GenerateRequest(name, [1, 2, 3], SamplingParams(max_tokens=10, temperature=0.5, seed=9))


def records(target: Target, spans: Spans | None, log_requests: bool = False) -> RequestRecords:
    return RequestRecords(target, "tiny", spans.tracing if spans else None, log_requests)


async def drained(gateway: RequestRecords, carrier: dict | None = None, n: int = 1) -> int:
    call = Call("chat", "chatcmpl-1", carrier or {}, {"http.route": "/v1/chat/completions"})
    return len([each async for each in gateway.outputs([request() for _ in range(n)], call)])


def ids(span) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


class TestContext:
    async def test_it_goes_from_the_caller_through_gateway_and_target_to_the_draft(self):
        at_gateway, at_target, at_draft = Spans("gateway"), Spans("target"), Spans("draft")
        target = Target(at_target)
        await drained(records(target, at_gateway), {"traceparent": CALLER})
        draft = DraftTraces(at_draft.tracing)
        draft.received("t", [opened(target.in_engine[0]), ask(4)])
        draft.sent("t", [Proposal(1, 1, 0, 4, [5, 6])])
        first, second, third = at_gateway.one(), at_target.one(), at_draft.one()
        assert f"{first.context.trace_id:032x}" == CALLER[3:35]
        assert f"{first.parent.span_id:016x}" == CALLER[36:52]
        assert (second.parent.trace_id, second.parent.span_id) == ids(first)
        assert (third.parent.trace_id, third.parent.span_id) == ids(second)
        assert {span.kind for span in (first, second, third)} == {SpanKind.SERVER}

    @pytest.mark.parametrize("given", ["", "nonsense", "00-zz-01", "x" * 5000])
    async def test_what_cannot_be_read_begins_a_trace_of_its_own(self, given):
        spans = Spans("gateway")
        await drained(records(Target(None), spans), {"traceparent": given})
        assert spans.one().parent is None

    @pytest.mark.parametrize(
        ("ratio", "carrier", "is_kept"),
        [
            (0.0, {}, False),
            (1.0, {}, True),
            (1.0, {"traceparent": UNSAMPLED}, False),
            (0.0, {"traceparent": CALLER}, True),
        ],
    )
    async def test_the_callers_choice_wins_over_the_ratio(self, ratio, carrier, is_kept):
        at_gateway, at_target = Spans("gateway", ratio), Spans("target", ratio)
        target = Target(at_target)
        await drained(records(target, at_gateway), carrier)
        assert len(at_gateway.all()) == len(at_target.all()) == is_kept
        assert bool(target.in_engine[0]) == is_kept

    async def test_choices_of_one_request_share_a_span(self):
        at_gateway, at_target = Spans("gateway"), Spans("target")
        await drained(records(Target(at_target), at_gateway), n=2)
        assert {span.parent.span_id for span in at_target.all()} == {
            at_gateway.one().context.span_id
        }
        assert at_gateway.one().attributes["gen_ai.request.choice.count"] == 2
        assert at_gateway.one().attributes["gen_ai.usage.output_tokens"] == 2 * NUM_STEPS


class TestGateway:
    async def test_a_span_has_the_attributes_of_the_conventions(self):
        spans = Spans("gateway")
        await drained(records(Target(None), spans))
        span = spans.one()
        assert span.name == "chat tiny"
        assert span.resource.attributes["service.name"] == "specdec-gateway"
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 10,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.seed": 9,
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 3,
            "gen_ai.usage.output_tokens": NUM_STEPS,
            "specdec.draft_tokens": 2 * (NUM_STEPS - 1),
            "specdec.outcome": "ok",
            "http.route": "/v1/chat/completions",
        }
        assert expected.items() <= dict(span.attributes).items()

    async def test_a_failure_is_marked_at_both_hops_and_still_raised(self):
        at_gateway, at_target = Spans("gateway"), Spans("target")
        target = Target(at_target, OverloadedError("full"))
        with pytest.raises(OverloadedError):
            await drained(records(target, at_gateway))
        for span in (at_gateway.one(), at_target.one()):
            assert span.status.status_code is StatusCode.ERROR
            assert span.attributes["error.type"] == "OverloadedError"

    async def test_a_caller_that_leaves_ends_the_span(self):
        spans = Spans("gateway")
        outputs = records(Target(None), spans).outputs([request()], Call("chat", "r"))
        await anext(outputs)
        await outputs.aclose()
        assert spans.one().attributes["specdec.outcome"] == "left"

    async def test_without_tracing_and_logging_nothing_stands_between(self):
        target = Target(None)
        outputs = records(target, None).outputs([request()], Call("chat", "r"))
        assert outputs.__qualname__ == "Target.merged"
        await outputs.aclose()


class TestSteps:
    async def test_every_so_many_steps_are_told_from_the_first(self):
        at_gateway, at_target = Spans("gateway"), Spans("target", step_every=4)
        await drained(records(Target(at_target), at_gateway))
        events = at_target.one().events
        assert [event.attributes["step"] for event in events] == [0, 4, 8]
        assert events[0].attributes["draft_tokens"] == 2
        assert at_target.one().attributes["specdec.drafter"] == "draft"

    async def test_a_request_that_is_not_traced_costs_its_target_nothing(self):
        target = Target(Spans("target"))
        outputs = target.traces.outputs(request(), target.generate)
        assert outputs.__qualname__ == "Target.generate"
        await outputs.aclose()


def opened(traceparent: str, session_id: int = 1) -> Open:
    return Open(session_id, 1, [1], [], SamplingParams(), 0, Verification.GREEDY, traceparent)


def ask(round_: int, session_id: int = 1, k: int = 3) -> Commit:
    return Commit(session_id, 1, 0, round_, [], k, 50.0)


class TestDraft:
    @pytest.fixture
    def spans(self):
        return Spans("draft", step_every=4)

    @pytest.fixture
    def draft(self, spans):
        return DraftTraces(spans.tracing)

    def test_every_so_many_rounds_are_told(self, spans, draft):
        draft.received("t", [opened(CALLER)])
        for round_ in range(1, 10):
            draft.received("t", [ask(round_)])
            draft.sent("t", [Proposal(1, 1, 0, round_, [5], draft_ms=1.5)])
        assert [span.attributes["specdec.round"] for span in spans.all()] == [4, 8]
        span = spans.all()[0]
        assert span.end_time >= span.start_time
        assert span.attributes["specdec.k"] == 3
        assert span.attributes["specdec.draft_ms"] == 1.5

    def test_an_answer_to_another_round_ends_none(self, spans, draft):
        draft.received("t", [opened(CALLER), ask(4)])
        draft.sent("t", [Proposal(1, 1, 0, 3, [5])])
        assert not spans.all()
        draft.sent("t", [Proposal(1, 1, 0, 4, [], reason="kv_full")])
        assert spans.one().attributes["specdec.decline_reason"] == "kv_full"

    @pytest.mark.parametrize("end", ["closed", "reopened untraced", "dropped", "never opened"])
    def test_a_session_that_is_over_is_told_no_more(self, spans, draft, end):
        if end != "never opened":
            draft.received("t", [opened(CALLER)])
        if end == "closed":
            draft.received("t", [Close(1, 1)])
        elif end == "reopened untraced":
            draft.received("t", [opened("")])
        elif end == "dropped":
            draft.dropped("t")
        draft.received("t", [ask(4)])
        draft.sent("t", [Proposal(1, 1, 0, 4, [5])])
        assert not spans.all()

    def test_two_targets_may_use_the_same_session_id(self, spans, draft):
        draft.received("one", [opened(CALLER)])
        draft.received("two", [opened(""), ask(4)])
        draft.sent("two", [Proposal(1, 1, 0, 4, [5])])
        assert not spans.all()


class TestLog:
    async def test_a_line_per_request_has_the_ids_as_fields(self, caplog):
        spans = Spans("gateway")
        with caplog.at_level(logging.INFO, "deployments.request_records"):
            await drained(records(Target(None), spans, log_requests=True))
        (record,) = caplog.records
        line = json.loads(JSONFormatter().format(record))  # what Serve writes
        assert line["response_id"] == "chatcmpl-1"
        assert line["trace_id"] == f"{spans.one().context.trace_id:032x}"
        assert line["finish_reasons"] == "stop"
        assert line["output_tokens"] == NUM_STEPS
        assert "chatcmpl-1" in record.getMessage()  # for text logs

    async def test_it_needs_no_tracing(self, caplog):
        with caplog.at_level(logging.INFO, "deployments.request_records"):
            await drained(records(Target(None), None, log_requests=True))
        assert caplog.records[0].outcome == "ok"
        assert caplog.records[0].trace_id == ""


def test_tracing_is_off_unless_asked_for():
    assert start_tracing(TracingSettings(), "target", "r1") is None


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"specdec\[tracing\]"):
        start_tracing(TracingSettings(enabled=True), "target", "r1")


def test_the_endpoint_is_a_collector_and_the_environment_is_heard(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://elsewhere:4318")
    for given, expected in (
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        (None, "http://elsewhere:4318/v1/traces"),
    ):
        tracing = start_tracing(TracingSettings(enabled=True, endpoint=given), "target", "r1")
        processor = tracing.provider._active_span_processor._span_processors[0]
        assert processor.span_exporter._endpoint == expected
        tracing.shutdown()
