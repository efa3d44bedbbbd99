"""A traced request's context crosses the wire to a real draft, whose rounds become spans."""

from __future__ import annotations

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.draft_traces import DraftTraces
from deployments.settings import TracingSettings
from deployments.tracing import tracing_to
from specdec.rpc.draft_server import DraftServer
from tests.integration.rpc.servers import TOKENS
from tests.integration.test_remote_draft import GREEDY, DraftReplica, connect, run
from tests.unit.engine.engine_harness import fixed, random_prompt, request

__all__ = ["connect"]  # a fixture

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedReplica(DraftReplica):
    """A draft replica that tells every round."""

    async def _start(self) -> None:
        self.exporter = InMemorySpanExporter()
        settings = TracingSettings(enabled=True, step_every=1)
        tracing = tracing_to(SimpleSpanProcessor(self.exporter), settings, "draft", "d1")
        self.server = DraftServer(self.thread, DraftTraces(tracing), TOKENS)
        self.port = await self.server.start("127.0.0.1:0")


def test_rounds_of_a_traced_request_are_spans_of_its_trace_and_others_are_none(
    tiny_draft,
    connect,
):
    replica = TracedReplica(tiny_draft)
    try:
        engine = connect(replica.member)
        traced = request(random_prompt(9, seed=1), "traced", speculation=fixed(3), **GREEDY)
        traced.traceparent = CALLER
        plain = request(random_prompt(9, seed=2), "plain", speculation=fixed(3), **GREEDY)
        outputs = run(engine, [traced, plain])
        num_steps = outputs["traced"][-1].metrics.stats.num_steps
        spans = replica.exporter.get_finished_spans()
        assert 0 < len(spans) <= num_steps + 1  # one may be asked for that nobody waits for
        assert {f"{span.parent.span_id:016x}" for span in spans} == {CALLER[36:52]}
        rounds = [span.attributes["specdec.round"] for span in spans]
        assert len(rounds) == len(set(rounds))
        assert all(span.attributes["specdec.k"] == 3 for span in spans[:3])
        assert any(span.attributes["specdec.draft_tokens"] > 0 for span in spans)
    finally:
        replica.stop()
