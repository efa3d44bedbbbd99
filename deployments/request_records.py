"""What is kept of each request as it passes the gateway: a span with GenAI attributes, a log line.

Stands between the handlers and the target client; it changes no output.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from deployments.target_client import TargetClient
from deployments.tracing import Tracing, context_of, failed, traceparent_of
from specdec.engine.request import GenerateRequest
from specdec.errors import SpecdecError
from specdec.sequence import RequestMetrics, SequenceOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """How a request came in. `operation`: chat or text_completion, as GenAI conventions name it;
    `carrier`: its headers or gRPC metadata; `transport`: attributes of its way in."""

    operation: str
    request_id: str
    carrier: Mapping[str, str] = field(default_factory=dict)
    transport: Mapping[str, str] = field(default_factory=dict)


class RequestRecords:
    """One per gateway replica."""

    def __init__(
        self, target: TargetClient, model: str, tracing: Tracing | None, log_requests: bool
    ) -> None:
        self._target = target
        self._model = model
        self._tracing = tracing
        self._log_requests = log_requests

    def outputs(
        self, requests: list[GenerateRequest], call: Call
    ) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        """As `TargetClient.merged`."""
        if self._tracing is None and not self._log_requests:
            return self._target.merged(requests)
        return self._followed(requests, call)

    async def _followed(
        self, requests: list[GenerateRequest], call: Call
    ) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        span = self._start(requests, call)
        for request in requests:
            request.traceparent = traceparent_of(span)
        ended: list[SequenceOutput] = []
        outcome = "left"  # by the client, unless something else comes
        try:
            async with aclosing(self._target.merged(requests)) as outputs:
                async for index, output in outputs:
                    if output.finish_reason is not None:
                        ended.append(output)
                    yield index, output
            outcome = "ok"
        except SpecdecError as error:
            outcome = type(error).__name__
            failed(span, error)
            raise
        finally:
            self._end(span, call, requests, ended, outcome)

    def _start(self, requests: Sequence[GenerateRequest], call: Call) -> Span:
        if self._tracing is None:
            return INVALID_SPAN
        return self._tracing.tracer.start_span(
            f"{call.operation} {self._model}",
            context=context_of(call.carrier),
            kind=SpanKind.SERVER,
            attributes={
                **call.transport,
                "gen_ai.operation.name": call.operation,
                "gen_ai.provider.name": "specdec",
                "gen_ai.request.model": self._model,
                "gen_ai.response.id": call.request_id,
                **_request_attributes(requests),
            },
        )

    def _end(
        self,
        span: Span,
        call: Call,
        requests: Sequence[GenerateRequest],
        ended: Sequence[SequenceOutput],
        outcome: str,
    ) -> None:
        metrics = [output.metrics for output in ended if output.metrics is not None]
        reasons = [output.finish_reason or "" for output in ended]
        if span.is_recording():
            span.set_attributes(_response_attributes(requests, metrics, reasons))
            span.set_attribute("specdec.outcome", outcome)
        span.end()
        if self._log_requests:
            self._log(span, call, metrics, reasons, outcome)

    def _log(
        self,
        span: Span,
        call: Call,
        metrics: Sequence[RequestMetrics],
        reasons: Sequence[str],
        outcome: str,
    ) -> None:
        trace_id = span.get_span_context().trace_id
        fields = {
            "response_id": call.request_id,
            "operation": call.operation,
            "outcome": outcome,
            "finish_reasons": ",".join(reasons),
            "output_tokens": sum(each.num_output_tokens for each in metrics),
            "trace_id": f"{trace_id:032x}" if trace_id else "",
        }
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value != "")
        logger.info("request ended: %s", text, extra=fields)


def _request_attributes(requests: Sequence[GenerateRequest]) -> dict[str, Any]:
    params = requests[0].params
    wanted = {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": len(requests),
        "specdec.speculation.mode": params.speculation.mode,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _response_attributes(
    requests: Sequence[GenerateRequest], metrics: Sequence[RequestMetrics], reasons: Sequence[str]
) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": sum(len(each.prompt_token_ids) for each in requests),
        "gen_ai.usage.output_tokens": sum(each.num_output_tokens for each in metrics),
        "gen_ai.response.finish_reasons": list(reasons),
        "specdec.decode_steps": sum(each.stats.num_steps for each in metrics),
        "specdec.draft_tokens": sum(each.stats.num_draft_tokens for each in metrics),
        "specdec.accepted_tokens": sum(each.stats.num_accepted_tokens for each in metrics),
    }
