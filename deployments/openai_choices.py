"""How the choices of one response are written: whole, or one stream chunk per engine step.

One writer per request, for either endpoint. The functions it uses are in `openai_responses.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deployments.openai_logprobs import ChatLogprobs, CompletionLogprobs, prompt_logprobs_entry
from deployments.openai_requests import ChatBody, CompletionBody
from deployments.openai_responses import Choice
from deployments.step_tokens import step_tokens
from specdec.engine.request import GenerateRequest
from specdec.model.token_bytes import TokenBytes, text_of
from specdec.sequence import SequenceOutput


class CompletionWriter:
    """/v1/completions."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self, body: CompletionBody, requests: Sequence[GenerateRequest], vocabulary: TokenBytes
    ) -> None:
        self._body = body
        self._requests = requests
        self._vocabulary = vocabulary
        self._logprobs = [
            CompletionLogprobs(
                vocabulary,
                request.prompt_token_ids,
                echo=body.echo,
                skip_special_tokens=body.skip_special_tokens,
                as_token_ids=body.return_tokens_as_token_ids,
            )
            for request in (requests if body.logprobs is not None else ())
        ]

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": self._echo(choice) + choice.text,
            "logprobs": self._logprobs[choice.index].of(choice.logprobs, choice.prompt_logprobs)
            if self._logprobs
            else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **_token_fields(self._body, choice, self._requests, self._vocabulary),
        }

    def deltas(self, choice: Choice, output: SequenceOutput) -> Iterator[dict[str, Any]]:
        """What `output`, the latest of `choice`, adds to what was sent before. The reason to end
        comes alone, since clients drop what is beside it."""
        is_first = choice.num_outputs == 1
        if is_first or output.text or output.token_ids:
            prompt = output.prompt_logprobs if is_first else None
            yield {
                "index": choice.index,
                "text": (self._echo(choice) if is_first else "") + output.text,
                "logprobs": self._logprobs[choice.index].of(output.logprobs or [], prompt)
                if self._logprobs
                else None,
                **_UNFINISHED,
                **_delta_fields(self._body, output),
                **_step_fields(self._requests[choice.index], choice, output, self._vocabulary),
            }
        if output.finish_reason is not None:
            yield {"index": choice.index, "text": "", "logprobs": None, **_end_of(output)}

    def _echo(self, choice: Choice) -> str:
        if not self._body.echo:
            return ""
        prompt = self._requests[choice.index].prompt_token_ids
        return text_of(self._vocabulary, prompt, self._body.skip_special_tokens)


class ChatWriter:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(
        self, body: ChatBody, requests: Sequence[GenerateRequest], vocabulary: TokenBytes
    ) -> None:
        self._body = body
        self._requests = requests
        self._vocabulary = vocabulary
        self._logprobs = [
            ChatLogprobs(
                vocabulary,
                request.prompt_token_ids,
                skip_special_tokens=body.skip_special_tokens,
                as_token_ids=body.return_tokens_as_token_ids,
            )
            for request in (requests if body.logprobs else ())
        ]

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs[choice.index].of(choice.logprobs)
            if self._logprobs
            else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **_token_fields(self._body, choice, self._requests, self._vocabulary),
        }

    def deltas(self, choice: Choice, output: SequenceOutput) -> Iterator[dict[str, Any]]:
        """As `CompletionWriter.deltas`; the first one names the role."""
        is_first = choice.num_outputs == 1
        if is_first or output.text or output.token_ids:
            role = {"role": "assistant"} if is_first else {}
            yield {
                "index": choice.index,
                "delta": {**role, "content": output.text},
                "logprobs": self._logprobs[choice.index].of(output.logprobs or [])
                if self._logprobs
                else None,
                **_UNFINISHED,
                **_delta_fields(self._body, output),
                **_step_fields(self._requests[choice.index], choice, output, self._vocabulary),
            }
        if output.finish_reason is not None:
            yield {"index": choice.index, "delta": {}, "logprobs": None, **_end_of(output)}


Writer = CompletionWriter | ChatWriter

_UNFINISHED: dict[str, Any] = {"finish_reason": None, "stop_reason": None}


def _end_of(output: SequenceOutput) -> dict[str, Any]:
    return {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}


def _delta_fields(body: CompletionBody | ChatBody, output: SequenceOutput) -> dict[str, Any]:
    return {"token_ids": output.token_ids} if body.return_token_ids else {}


def _step_fields(
    request: GenerateRequest, choice: Choice, output: SequenceOutput, vocabulary: TokenBytes
) -> dict[str, Any]:
    """What became of the step's draft tokens, where the request asked by `explain`."""
    if not (request.params.speculation.explain and output.token_ids):
        return {}
    num_new = len(output.token_ids)
    before = choice.token_ids[-num_new - 1 : -num_new] or request.prompt_token_ids[-1:]
    return {"specdec": step_tokens(output, before, vocabulary)}


def _token_fields(
    body: CompletionBody | ChatBody,
    choice: Choice,
    requests: Sequence[GenerateRequest],
    vocabulary: TokenBytes,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    prompt_token_ids = requests[choice.index].prompt_token_ids
    if body.return_token_ids:
        fields["token_ids"] = choice.token_ids
        fields["prompt_token_ids"] = prompt_token_ids
    if body.prompt_logprobs is not None and choice.prompt_logprobs is not None:
        fields["prompt_logprobs"] = prompt_logprobs_entry(
            choice.prompt_logprobs, prompt_token_ids, vocabulary, body.return_tokens_as_token_ids
        )
    return fields
