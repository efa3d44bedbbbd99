"""OpenTelemetry as every replica uses it: which spans are kept, where they go, how context travels.

Context travels as a W3C `traceparent`: in the caller's headers or gRPC metadata, in the request
over Serve's handle, and in `Open` on the way to a draft. No provider is set for the process: Ray
has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deployments.settings import TracingSettings
from specdec.errors import ConfigError

TRACEPARENT = "traceparent"

_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Tracing:
    """One per replica. Every `step_every`-th step of a traced request is told."""

    provider: TracerProvider
    tracer: trace.Tracer
    step_every: int

    def shutdown(self) -> None:
        """Send what has ended; blocks for seconds where nobody listens."""
        self.provider.shutdown()


def start_tracing(settings: TracingSettings, role: str, replica_id: str) -> Tracing | None:
    """None where tracing is off. Raises ConfigError where the extra is not installed."""
    if not settings.enabled:
        return None
    return tracing_to(BatchSpanProcessor(_exporter(settings.endpoint)), settings, role, replica_id)


def tracing_to(processor: Any, settings: TracingSettings, role: str, replica_id: str) -> Tracing:
    """Tracing whose spans go through `processor`."""
    resource = Resource.create(
        {
            "service.name": f"specdec-{role}",
            "service.version": version("specdec"),
            "service.instance.id": replica_id,
        }
    )
    sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
    provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("specdec", version("specdec"))
    return Tracing(provider, tracer, settings.step_every)


def _exporter(endpoint: str | None) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "tracing.enabled: needs the extra: pip install 'specdec[tracing]'",
            field="tracing.enabled",
        ) from error
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)


def context_of(carrier: Mapping[str, str]) -> Context:
    """The caller's context, from headers with lower-case names; an empty one where there is none,
    or none that can be read."""
    return _W3C.extract({TRACEPARENT: carrier.get(TRACEPARENT, "")}, context=Context())


def traceparent_of(span: trace.Span) -> str:
    """What to send along; "" for a span that nobody keeps."""
    if not span.is_recording():
        return ""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier[TRACEPARENT]


def failed(span: trace.Span, error: BaseException) -> None:
    """Mark a span as failed, without a stack."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(trace.StatusCode.ERROR, str(error))
