"""A target behind the gateway's handlers that writes what it is told."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

from deployments.gateway_service import GatewayService
from deployments.http_handlers import HttpHandlers
from deployments.prompts import Prompter
from deployments.settings import AppSettings
from specdec.engine.output import OutputState
from specdec.model.token_bytes import TokenBytes
from specdec.sequence import (
    RequestMetrics,
    Sequence,
    SequenceOutput,
    SpeculationStats,
    TokenLogprobs,
    Verification,
)

MAX_MODEL_LEN = 4096


class ScriptedTarget:
    """Emits `token_ids`, a few per step and the steps of several requests in turn. The likeliest
    tokens at each position are the ids behind the emitted one, which is among them or not."""

    def __init__(self, tokenizer, token_ids, per_step=3, num_cached_tokens=0) -> None:
        self.token_ids = token_ids
        self.per_step = per_step
        self.num_cached_tokens = num_cached_tokens
        self.requests = []
        self._vocabulary = TokenBytes(tokenizer)
        self._vocab_size = len(tokenizer)

    async def describe_all(self):
        limits = {"vocab_size": self._vocab_size, "max_model_len": MAX_MODEL_LEN}
        return [SimpleNamespace(**limits, drafters=(), max_num_speculative_tokens=0)]

    async def merged(self, requests):
        self.requests.extend(requests)
        rounds = itertools.zip_longest(*(self._outputs(each) for each in requests))
        for outputs in rounds:
            for index, output in enumerate(outputs):
                if output is not None:
                    yield index, output

    def _outputs(self, request):
        state = OutputState(_sequence(request), self._vocabulary)
        params = request.params
        for start in range(0, len(self.token_ids), self.per_step):
            emitted = state.append(self.token_ids[start : start + self.per_step])
            output = SequenceOutput(
                1,
                request.request_id,
                emitted.token_ids,
                emitted.text,
                finish_reason=emitted.finish_reason,
                stop_reason=emitted.stop_reason,
            )
            if params.logprobs is not None:
                output.logprobs = [self._position(i, params.logprobs) for i in emitted.token_ids]
            if start == 0 and params.prompt_logprobs is not None:
                rest = request.prompt_token_ids[1:]
                known = [self._position(i, params.prompt_logprobs) for i in rest]
                output.prompt_logprobs = [None, *known]
            if state.finished:
                output.metrics = self._metrics(request, state.num_tokens)
            yield output
            if state.finished:
                return
        raise AssertionError("the script ended before the output did")

    def _position(self, token_id, top_n):
        likely = [(token_id + 1 + i) % self._vocab_size for i in range(top_n)]
        return TokenLogprobs(token_id, -9.0, 30, [(t, -1.0 - i) for i, t in enumerate(likely)])

    def _metrics(self, request, num_output_tokens):
        return RequestMetrics(
            mode="auto",
            verification=Verification.GREEDY,
            drafter=None,
            disabled_reason=None,
            clipped_k=None,
            max_k=0,
            stats=SpeculationStats(),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=0,
            queue_s=0.0,
            time_to_first_token_s=0.1,
            generation_s=0.1,
        )


def _sequence(request):
    return Sequence(
        seq_id=1,
        request_id=request.request_id,
        token_ids=list(request.prompt_token_ids),
        num_prompt_tokens=len(request.prompt_token_ids),
        params=request.params,
        seed=0,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset({0}),
        max_model_len=MAX_MODEL_LEN,
    )


def handlers_of(tokenizer, target, **gateway) -> HttpHandlers:
    settings = AppSettings.model_validate(
        {
            "target": {"target": {"model": "tiny"}, "speculation": {"drafters": []}},
            "gateway": gateway,
        }
    )
    return HttpHandlers(GatewayService(settings, target, Prompter(tokenizer)))


class Post:
    """As much of a Starlette request as the handlers read."""

    def __init__(self, body, **headers) -> None:
        self.headers = headers
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def stream(self):
        yield self._body


async def answer(handlers, path, **body) -> dict:
    """The whole answer of `path`, the name of a handler."""
    response = await getattr(handlers, path)(Post(body))
    return json.loads(response.body)


async def events(handlers, path, **body) -> list[dict]:
    """The stream of the same request, apart from its end."""
    response = await getattr(handlers, path)(Post({**body, "stream": True}))
    raw = [event async for event in response.body_iterator]
    assert raw.pop() == b"data: [DONE]\n\n"
    return [json.loads(event.removeprefix(b"data: ")) for event in raw]
