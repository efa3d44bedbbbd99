"""specdec.v1.InferenceService on Serve's gRPC port.

Message to domain object, one call, domain object to message. Every way out sets a status: Serve
would otherwise send a traceback to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration
from ray.serve.grpc_util import RayServegRPCContext

from deployments.api_keys import Caller
from deployments.auth import partition_of
from deployments.explanations import FINISH_REASONS, explain_message, explanation_message
from deployments.gateway_service import GatewayService, new_request_id
from deployments.grpc_bounds import check_lengths
from deployments.grpc_errors import fail
from deployments.grpc_logprobs import PositionMessages
from deployments.request_records import Call
from specdec.engine.request import GenerateRequest
from specdec.errors import InvalidRequestError, SpecdecError
from specdec.rpc.convert_params import (
    params_from_wire,
    speculation_from_wire,
    verification_to_wire,
)
from specdec.sequence import RequestMetrics, SequenceOutput
from specdec.v1 import inference_pb2 as pb
from specdec.v1 import sampling_pb2

logger = logging.getLogger(__name__)

SPECULATION_MODES = {
    "auto": sampling_pb2.SPECULATION_MODE_AUTO,
    "off": sampling_pb2.SPECULATION_MODE_OFF,
    "fixed": sampling_pb2.SPECULATION_MODE_FIXED,
}


class GrpcHandlers:
    """One per gateway replica."""

    def __init__(self, service: GatewayService) -> None:
        self._service = service

    async def generate(
        self, wire: pb.GenerateRequest, context: RayServegRPCContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        """One message per engine step; a failure is the last message and the call's status."""
        try:
            caller = self._caller(context)
            request = await self._request(wire, caller)
            call = _call("Generate", request, context)
            async with aclosing(self._service.records.outputs([request], call)) as outputs:
                positions = PositionMessages(self._service.prompter.vocabulary, request)
                async for _, output in outputs:
                    yield step_message(output, positions)
        except Exception as error:
            in_band = fail(context, _as_ours(error))
            yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_ERROR, error=in_band)

    async def complete(
        self, wire: pb.CompleteRequest, context: RayServegRPCContext
    ) -> pb.CompleteResponse:
        try:
            caller = self._caller(context)
            request = await self._request(wire.request, caller)
            result = pb.CompleteResponse(request_id=request.request_id)
            call = _call("Complete", request, context)
            async with aclosing(self._service.records.outputs([request], call)) as outputs:
                positions = PositionMessages(self._service.prompter.vocabulary, request)
                async for _, output in outputs:
                    _append(result, step_message(output, positions))
            return result
        except Exception as error:
            fail(context, _as_ours(error))
            return pb.CompleteResponse()

    async def get_model(
        self, wire: pb.GetModelRequest, context: RayServegRPCContext
    ) -> pb.GetModelResponse:
        try:
            self._caller(context)
            self._service.check_model(wire.model)
            limits = await self._service.description()
            prompter = self._service.prompter
            digest = await asyncio.to_thread(prompter.tokenizer_hash)
            return pb.GetModelResponse(
                model=self._service.model,
                vocab_size=limits.vocab_size,
                max_model_len=limits.max_model_len,
                tokenizer_hash=digest,
                drafters=limits.drafters,
                max_num_speculative_tokens=limits.max_num_speculative_tokens,
                has_chat_template=prompter.has_chat_template,
            )
        except Exception as error:
            fail(context, _as_ours(error))
            return pb.GetModelResponse()

    async def tokenize(
        self, wire: pb.TokenizeRequest, context: RayServegRPCContext
    ) -> pb.TokenizeResponse:
        try:
            self._caller(context)
            self._service.check_model(wire.model)
            if wire.WhichOneof("input") == "chat":
                ids = await self._chat(wire.chat)
            else:
                special = wire.add_special_tokens if wire.HasField("add_special_tokens") else True
                ids = await self._service.token_ids(wire.text, "text", special)
            limits = await self._service.description()
            return pb.TokenizeResponse(token_ids=ids, max_model_len=limits.max_model_len)
        except Exception as error:
            fail(context, _as_ours(error))
            return pb.TokenizeResponse()

    async def detokenize(
        self, wire: pb.DetokenizeRequest, context: RayServegRPCContext
    ) -> pb.DetokenizeResponse:
        try:
            self._caller(context)
            self._service.check_model(wire.model)
            await self._service.check_tokens(wire.token_ids, "token_ids")
            text = await asyncio.to_thread(
                self._service.prompter.decode, wire.token_ids, wire.skip_special_tokens
            )
            return pb.DetokenizeResponse(text=text)
        except Exception as error:
            fail(context, _as_ours(error))
            return pb.DetokenizeResponse()

    async def explain(
        self, wire: pb.ExplainRequest, context: RayServegRPCContext
    ) -> pb.ExplainResponse:
        try:
            caller = self._caller(context)
            return explain_message(await self._service.explain(caller, wire.request_id))
        except Exception as error:
            fail(context, _as_ours(error))
            return pb.ExplainResponse()

    async def _request(self, wire: pb.GenerateRequest, caller: Caller) -> GenerateRequest:
        partition = partition_of(caller.tenant, wire.cache_salt)
        self._service.check_model(wire.model)
        if wire.request_id:
            self._service.check_request_id(wire.request_id)
        check_lengths(wire, await self._service.description())
        prompt = await self._prompt(wire)
        params = params_from_wire(wire.sampling, speculation_from_wire(wire.speculation))
        if wire.bad_words:
            if params.bad_words_token_ids:
                raise InvalidRequestError(
                    "bad_words: give words or token ids, not both", field="bad_words"
                )
            banned = await asyncio.to_thread(self._service.prompter.bad_words, wire.bad_words)
            params = replace(params, bad_words_token_ids=banned)
        timeout_s = None
        if wire.HasField("timeout"):
            timeout_s = wire.timeout.seconds + wire.timeout.nanos / 1e9
        request_id = wire.request_id or new_request_id("gen")
        requests = await self._service.requests(
            [prompt], params, partition, request_id, timeout_s=timeout_s
        )
        return requests[0]

    def _caller(self, context: RayServegRPCContext) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        return self._service.caller(metadata.get("authorization"))

    async def _prompt(self, wire: pb.GenerateRequest) -> list[int]:
        kind = wire.WhichOneof("prompt")
        if kind == "token_ids":
            return list(wire.token_ids.token_ids)
        if kind == "chat":
            return await self._chat(wire.chat)
        return await self._service.token_ids(wire.text)

    async def _chat(self, chat: pb.ChatMessages) -> list[int]:
        self._service.check_num_messages(len(chat.messages))
        messages = [{"role": m.role, "content": m.content} for m in chat.messages]
        return await self._service.chat_token_ids(messages)


def _call(method: str, request: GenerateRequest, context: RayServegRPCContext) -> Call:
    transport = {
        "rpc.system": "grpc",
        "rpc.service": "specdec.v1.InferenceService",
        "rpc.method": method,
    }
    metadata = dict(context.invocation_metadata() or ())
    return Call("text_completion", request.request_id, metadata, transport)


def _as_ours(error: Exception) -> SpecdecError:
    if isinstance(error, SpecdecError):
        return error
    logger.exception("unhandled error in a gRPC call")
    return SpecdecError(str(error))


def step_message(output: SequenceOutput, positions: PositionMessages) -> pb.GenerateResponse:
    """One engine step of one sequence."""
    message = pb.GenerateResponse(
        request_id=output.request_id,
        token_ids=output.token_ids,
        text=output.text,
        draft_token_ids=output.draft_token_ids,
        num_draft_tokens=len(output.draft_token_ids),
        num_accepted_tokens=output.num_accepted_tokens,
        logprobs=positions.output(output.logprobs or ()),
        prompt_logprobs=positions.prompt(output.prompt_logprobs or ()),
    )
    if output.finish_reason is not None:
        message.finish_reason = FINISH_REASONS[output.finish_reason]
    if isinstance(output.stop_reason, str):
        message.stop_string = output.stop_reason
    elif output.stop_reason is not None:
        message.stop_token_id = output.stop_reason
    if output.metrics is not None:
        _add_metrics(message, output.metrics)
    return message


def _add_metrics(message: pb.GenerateResponse, metrics: RequestMetrics) -> None:
    stats = metrics.stats
    message.usage.CopyFrom(
        pb.Usage(
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_cached_tokens=metrics.num_cached_tokens,
            num_output_tokens=metrics.num_output_tokens,
        )
    )
    message.speculation.CopyFrom(
        pb.SpeculationStats(
            num_steps=stats.num_steps,
            num_drafts=stats.num_drafts,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            num_emitted_accepted_tokens=stats.num_emitted_accepted_tokens,
            accepted_per_position=stats.accepted_per_position,
            drafter=metrics.drafter or "",
            verification=verification_to_wire(metrics.verification),
            disabled_reason=metrics.disabled_reason or "",
            mode=SPECULATION_MODES[metrics.mode],
            clipped_k=metrics.clipped_k,
            explanations=[explanation_message(each) for each in metrics.explanations or ()],
        )
    )
    total_s = metrics.time_to_first_token_s + metrics.generation_s
    message.timing.queued.CopyFrom(_duration(metrics.queue_s))
    message.timing.first_token.CopyFrom(_duration(metrics.time_to_first_token_s))
    message.timing.total.CopyFrom(_duration(total_s))


def _append(result: pb.CompleteResponse, step: pb.GenerateResponse) -> None:
    result.token_ids.extend(step.token_ids)
    result.text += step.text
    result.logprobs.extend(step.logprobs)
    result.prompt_logprobs.extend(step.prompt_logprobs)
    if step.finish_reason == pb.FINISH_REASON_UNSPECIFIED:
        return
    result.finish_reason = step.finish_reason
    match step.WhichOneof("stop_reason"):
        case "stop_string":
            result.stop_string = step.stop_string
        case "stop_token_id":
            result.stop_token_id = step.stop_token_id
    result.usage.CopyFrom(step.usage)
    result.speculation.CopyFrom(step.speculation)
    result.timing.CopyFrom(step.timing)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
