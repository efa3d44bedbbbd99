"""The OpenAI-compatible HTTP endpoints, apart from their routes.

Each handler parses, asks the target and writes the answer down. Errors leave as SpecdecError and
are turned into responses in one place (`gateway.py`); a stream tells them in band.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from deployments.api_keys import Caller
from deployments.auth import partition_of
from deployments.body_encoding import content_encoding, plain_text
from deployments.body_reader import BodyReader
from deployments.chat_messages import check_open_turn, template_messages
from deployments.fleet_reader import FleetReader
from deployments.gateway_service import GatewayService, new_request_id
from deployments.live_reading import live_reading
from deployments.metrics import exposition
from deployments.openai_choices import ChatWriter, CompletionWriter, Writer
from deployments.openai_logprobs import spelt
from deployments.openai_requests import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    StreamOptions,
    TokenizeBody,
    as_sent,
    parse,
)
from deployments.openai_responses import (
    DONE,
    Choice,
    error_body,
    event,
    request_metrics,
    usage,
)
from deployments.request_records import Call
from specdec.engine.request import GenerateRequest
from specdec.errors import InvalidRequestError, SpecdecError
from specdec.model.token_bytes import TokenWalk
from specdec.sequence import SequenceOutput


@dataclass(frozen=True, slots=True)
class _Admission:
    """Whose cached text may be shared, and what the answer is called."""

    partition: str
    response_id: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class _Job:
    """One generation request on its way: what to run, and how to write it down."""

    body: CompletionBody | ChatBody
    requests: list[GenerateRequest]
    call: Call
    created: int
    writer: Writer

    def choices(self) -> list[Choice]:
        """In the order of the requests: n for each prompt."""
        n = self.body.n
        return [Choice(i, i // n, len(r.prompt_token_ids)) for i, r in enumerate(self.requests)]


class HttpHandlers:
    """One per gateway replica."""

    def __init__(self, service: GatewayService) -> None:
        self._service = service
        self._fleet = FleetReader(service.target)
        settings = service.settings
        self._bodies = BodyReader(
            settings.max_body_bytes, settings.body_timeout_s, settings.max_bodies_per_tenant
        )

    # -- generation ----------------------------------------------------------------------------

    async def completions(self, http: Request) -> Response:
        caller = self._caller(http)
        body = await self._body(CompletionBody, http, caller)
        admitted = self._admit(http, caller, body)
        given = body.prompts()
        self._service.check_num_prompts(len(given), body.n)
        keep_end = body.truncate_prompt_tokens is not None
        ids = [
            await self._service.token_ids(
                prompt, add_special_tokens=body.add_special_tokens, keep_end=keep_end
            )
            for prompt in given
        ]
        with as_sent(body):
            job = await self._job(
                admitted,
                body,
                ids,
                body.output_tokens(),
                body.logprobs,
                body.num_prompt_logprobs(),
            )
            return await (self._stream(job) if body.stream else self._answer(job))

    async def chat(self, http: Request) -> Response:
        caller = self._caller(http)
        body = await self._body(ChatBody, http, caller)
        admitted = self._admit(http, caller, body)
        ids = await self._service.chat_token_ids(
            body.template_messages(),
            body.chat_template,
            body.template_arguments(),
            body.add_generation_prompt,
            body.continue_final_message,
            keep_end=body.truncate_prompt_tokens is not None,
        )
        room = (await self._service.description()).max_model_len - len(ids)
        with as_sent(body):
            job = await self._job(
                admitted,
                body,
                [ids],
                body.output_tokens(room),
                body.num_top_logprobs(),
                body.prompt_logprobs,
            )
            return await (self._stream(job) if body.stream else self._answer(job))

    def _caller(self, http: Request) -> Caller:
        """Before the body is read: a stranger's would be work for nothing."""
        return self._service.caller(http.headers.get("authorization"))

    def _operator(self, http: Request) -> Caller:
        return self._service.operator(http.headers.get("authorization"))

    def _admit(self, http: Request, caller: Caller, body: CompletionBody | ChatBody) -> _Admission:
        """Everything that costs nothing to check, before any of the caller's text is worked on."""
        partition = partition_of(caller.tenant, body.cache_salt)
        self._service.check_model(body.model)
        body.check_supported()
        given_id = body.request_id or http.headers.get("x-request-id")
        prefix = _writer_kind(body).id_prefix
        if not given_id:
            return _Admission(partition, new_request_id(prefix), http.headers)
        self._service.check_request_id(given_id)
        return _Admission(partition, f"{prefix}-{given_id}", http.headers)

    async def _job(
        self,
        admitted: _Admission,
        body: CompletionBody | ChatBody,
        prompts: list[list[int]],
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None,
    ) -> _Job:
        if body.truncate_prompt_tokens is not None:
            prompts = [prompt[-body.truncate_prompt_tokens :] for prompt in prompts]
        # In a thread, since bad words are tokenised.
        params = await asyncio.to_thread(
            body.sampling_params, self._service.prompter, max_tokens, logprobs, prompt_logprobs
        )
        requests = await self._service.requests(
            prompts, params, admitted.partition, admitted.response_id, body.n, body.timeout
        )
        writer: Writer = _writer_kind(body)(body, requests, self._service.prompter.vocabulary)
        return _Job(body, requests, _call(body, admitted), int(time.time()), writer)

    async def _answer(self, job: _Job) -> Response:
        choices = job.choices()
        async with aclosing(self._service.records.outputs(job.requests, job.call)) as outputs:
            async for index, output in outputs:
                choices[index].add(output)
        return JSONResponse(
            {
                **self._head(job, job.writer.whole_object),
                "choices": [job.writer.whole(choice) for choice in choices],
                "usage": usage(choices),
                "metrics": request_metrics(choices),
            }
        )

    async def _stream(self, job: _Job) -> Response:
        """Wait for the first output, so that an error before it is a plain HTTP error."""
        outputs = self._service.records.outputs(job.requests, job.call)
        try:
            first = await anext(outputs)
        except BaseException:  # the caller may leave while it waits
            await outputs.aclose()
            raise
        return StreamingResponse(
            self._events(job, first, outputs),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    async def _events(
        self,
        job: _Job,
        first: tuple[int, SequenceOutput],
        outputs: AsyncGenerator[tuple[int, SequenceOutput], None],
    ) -> AsyncIterator[bytes]:
        head, choices = self._head(job, job.writer.chunk_object), job.choices()
        options = job.body.stream_options or StreamOptions()
        try:
            with as_sent(job.body):
                async for index, output in _chain(first, outputs):
                    choice = choices[index]
                    choice.add(output)
                    so_far = {"usage": usage([choice])} if options.continuous_usage_stats else {}
                    for delta in job.writer.deltas(choice, output):
                        yield event({**head, "choices": [delta], **so_far})
            if options.include_usage:
                extras = {"usage": usage(choices), "metrics": request_metrics(choices)}
                yield event({**head, "choices": [], **extras})
        except SpecdecError as error:
            yield event(error_body(error)[1])
        yield DONE

    def _head(self, job: _Job, kind: str) -> dict[str, Any]:
        return {
            "id": job.call.request_id,
            "object": kind,
            "created": job.created,
            "model": self._service.model,
        }

    # -- the rest ------------------------------------------------------------------------------

    async def models(self, http: Request) -> Response:
        self._caller(http)
        return JSONResponse({"object": "list", "data": [await self._model_card()]})

    async def model(self, http: Request, name: str) -> Response:
        self._caller(http)
        self._service.check_model(name)
        return JSONResponse(await self._model_card())

    async def _model_card(self) -> dict[str, Any]:
        limits = await self._service.description()
        return {
            "id": self._service.model,
            "object": "model",
            "created": self._service.started_s,
            "owned_by": "specdec",
            "max_model_len": limits.max_model_len,
            "drafters": list(limits.drafters),
            "max_num_speculative_tokens": limits.max_num_speculative_tokens,
        }

    async def tokenize(self, http: Request) -> Response:
        caller = self._caller(http)
        body = await self._body(TokenizeBody, http, caller)
        self._service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequestError("prompt: give either prompt or messages", field="prompt")
        if body.messages is not None:
            check_open_turn(body)
            ids = await self._service.chat_token_ids(
                template_messages(body.messages),
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
            )
        else:
            ids = await self._service.token_ids(
                body.prompt or "", add_special_tokens=body.add_special_tokens
            )
        result: dict[str, Any] = {"tokens": ids, "count": len(ids)}
        result["max_model_len"] = (await self._service.description()).max_model_len
        if body.return_token_strs:
            await self._service.check_tokens(ids, "return_token_strs")
            walk = TokenWalk(self._service.prompter.vocabulary, (), skip_special_tokens=False)
            result["token_strs"] = await asyncio.to_thread(
                lambda: [spelt(walk.step(token_id)) for token_id in ids]
            )
        return JSONResponse(result)

    async def detokenize(self, http: Request) -> Response:
        caller = self._caller(http)
        body = await self._body(DetokenizeBody, http, caller)
        self._service.check_model(body.model)
        await self._service.check_tokens(body.tokens, "tokens")
        text = await asyncio.to_thread(self._service.prompter.decode, body.tokens)
        return JSONResponse({"prompt": text})

    async def health(self) -> Response:
        await self._service.check_health()
        return Response(status_code=200)

    async def metrics(self, http: Request) -> Response:
        self._operator(http)
        reading = await self._fleet.read()
        text = exposition(self._service.model, reading.described, reading.counters)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def live(self, http: Request) -> Response:
        self._operator(http)
        reading = await self._fleet.watch()
        return JSONResponse(live_reading(self._service.model, version("specdec"), reading))

    def version(self) -> Response:
        return JSONResponse({"version": version("specdec")})

    async def _body(self, kind: type[Body], http: Request, caller: Caller) -> Body:
        limit = self._service.settings.max_body_bytes
        encoding = content_encoding(http.headers)
        raw = await self._bodies.read(http, caller.tenant)
        return parse(kind, await plain_text(raw, encoding, limit), limit)


def _call(body: CompletionBody | ChatBody, admitted: _Admission) -> Call:
    is_chat = isinstance(body, ChatBody)
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    return Call(
        operation="chat" if is_chat else "text_completion",
        request_id=admitted.response_id,
        carrier=admitted.headers,
        transport={"http.request.method": "POST", "http.route": path},
    )


def _writer_kind(body: CompletionBody | ChatBody) -> type[CompletionWriter] | type[ChatWriter]:
    return CompletionWriter if isinstance(body, CompletionBody) else ChatWriter


async def _chain(
    first: tuple[int, SequenceOutput], rest: AsyncGenerator[tuple[int, SequenceOutput], None]
) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
    async with aclosing(rest):
        yield first
        async for item in rest:
            yield item
