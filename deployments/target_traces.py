"""A traced request at its target: one span, with an event for every so many steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from opentelemetry.trace import Span, SpanKind

from deployments.tracing import TRACEPARENT, Tracing, context_of, failed, traceparent_of
from specdec.engine.request import GenerateRequest
from specdec.errors import SpecdecError
from specdec.sequence import SequenceOutput

Generate = Callable[[GenerateRequest], AsyncGenerator[SequenceOutput, None]]


class TargetTraces:
    """One per target replica; `tracing` None: nothing is traced."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing

    def outputs(
        self, request: GenerateRequest, generate: Generate
    ) -> AsyncGenerator[SequenceOutput, None]:
        """`generate(request)`, followed where the gateway traces it."""
        if self._tracing is None or not request.traceparent:
            return generate(request)
        return self._followed(self._tracing, request, generate)

    async def _followed(
        self, tracing: Tracing, request: GenerateRequest, generate: Generate
    ) -> AsyncGenerator[SequenceOutput, None]:
        span = tracing.tracer.start_span(
            "specdec.target",
            context=context_of({TRACEPARENT: request.traceparent}),
            kind=SpanKind.SERVER,
            attributes={"specdec.request_id": request.request_id},
        )
        request.traceparent = traceparent_of(span)
        step = 0
        try:
            async with aclosing(generate(request)) as outputs:
                async for output in outputs:
                    if step % tracing.step_every == 0:
                        _tell_step(span, step, output)
                    _tell_end(span, output)
                    yield output
                    step += 1
        except SpecdecError as error:
            failed(span, error)
            raise
        finally:
            span.end()


def _tell_step(span: Span, step: int, output: SequenceOutput) -> None:
    """Step 0 brings the first token."""
    span.add_event(
        "specdec.step",
        {
            "step": step,
            "draft_tokens": len(output.draft_token_ids),
            "accepted_tokens": output.num_accepted_tokens,
            "output_tokens": len(output.token_ids),
        },
    )


def _tell_end(span: Span, output: SequenceOutput) -> None:
    metrics = output.metrics
    if metrics is None:
        return
    span.set_attributes(
        {
            "gen_ai.usage.output_tokens": metrics.num_output_tokens,
            "specdec.finish_reason": output.finish_reason or "",
            "specdec.drafter": metrics.drafter or "",
            "specdec.disabled_reason": metrics.disabled_reason or "",
            "specdec.verification": str(metrics.verification),
            "specdec.decode_steps": metrics.stats.num_steps,
            "specdec.queue_s": metrics.queue_s,
            "specdec.time_to_first_token_s": metrics.time_to_first_token_s,
            "specdec.preemptions": metrics.num_preemptions,
            "specdec.cached_tokens": metrics.num_cached_tokens,
        }
    )
