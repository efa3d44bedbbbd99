"""How the choices of one response are written: whole, or one stream chunk per engine step.

One writer per request, for either endpoint. The functions it uses are in `openai_responses.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.openai_requests import ChatBody, CompletionBody
from deployments.openai_responses import (
    Choice,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs_entry,
)
from deployments.prompts import Prompter
from deployments.step_tokens import NUM_CONTEXT_TOKENS, step_tokens
from specdec.engine.request import GenerateRequest
from specdec.sequence import SequenceOutput, TokenLogprobs


class CompletionWriter:
    """/v1/completions."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self, body: CompletionBody, requests: Sequence[GenerateRequest], prompter: Prompter
    ) -> None:
        self._body = body
        self._requests = requests
        self._prompter = prompter
        self._texts = TokenTexts(prompter, body.return_tokens_as_token_ids)
        self._offsets = [0] * len(requests)

    def whole(self, choice: Choice) -> dict[str, Any]:
        prompt = choice.prompt_logprobs
        return {
            "index": choice.index,
            "text": self._echo(choice) + choice.text,
            "logprobs": self._logprobs(choice, choice.logprobs, prompt),
            **_end_of(choice),
            **_token_fields(self._body, choice, self._requests, self._texts),
        }

    def delta(self, choice: Choice, output: SequenceOutput) -> dict[str, Any]:
        """What `output`, the latest of `choice`, adds to what was sent before."""
        is_first = len(choice.token_ids) == len(output.token_ids)
        text = (self._echo(choice) if is_first else "") + output.text
        prompt = output.prompt_logprobs if is_first else None
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice, output.logprobs or [], prompt),
            **_end_of(choice),
            **_delta_fields(self._body, output),
            **_step_fields(self._requests[choice.index], choice, output, self._prompter),
        }

    def _echo(self, choice: Choice) -> str:
        if not self._body.echo:
            return ""
        prompt = self._requests[choice.index].prompt_token_ids
        return self._prompter.decode(prompt, self._body.skip_special_tokens)

    def _logprobs(
        self,
        choice: Choice,
        positions: list[TokenLogprobs],
        prompt_positions: list[TokenLogprobs | None] | None,
    ) -> dict[str, Any] | None:
        """Of these output tokens and, with `echo`, of the prompt before them."""
        if self._body.logprobs is None:
            return None
        first = None
        if self._body.echo and prompt_positions:
            first = self._requests[choice.index].prompt_token_ids[0]
            positions = [p for p in prompt_positions if p is not None] + positions
        offset = self._offsets[choice.index]
        token_ids = [p.token_id for p in positions] + ([] if first is None else [first])
        self._offsets[choice.index] += sum(map(self._texts.num_characters, token_ids))
        return completion_logprobs(positions, self._texts, offset, first)


class ChatWriter:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(
        self, body: ChatBody, requests: Sequence[GenerateRequest], prompter: Prompter
    ) -> None:
        self._body = body
        self._requests = requests
        self._prompter = prompter
        self._texts = TokenTexts(prompter, body.return_tokens_as_token_ids)

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
            **_end_of(choice),
            **_token_fields(self._body, choice, self._requests, self._texts),
        }

    def delta(self, choice: Choice, output: SequenceOutput) -> dict[str, Any]:
        """What `output`, the latest of `choice`, adds to what was sent before."""
        delta: dict[str, Any] = {"content": output.text}
        if len(choice.token_ids) == len(output.token_ids):
            delta = {"role": "assistant", **delta}
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": self._logprobs(output.logprobs or []),
            **_end_of(choice),
            **_delta_fields(self._body, output),
            **_step_fields(self._requests[choice.index], choice, output, self._prompter),
        }

    def _logprobs(self, positions: list[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(positions, self._texts) if self._body.logprobs else None


Writer = CompletionWriter | ChatWriter


def _end_of(choice: Choice) -> dict[str, Any]:
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}


def _delta_fields(body: CompletionBody | ChatBody, output: SequenceOutput) -> dict[str, Any]:
    return {"token_ids": output.token_ids} if body.return_token_ids else {}


def _step_fields(
    request: GenerateRequest, choice: Choice, output: SequenceOutput, prompter: Prompter
) -> dict[str, Any]:
    """What became of the step's draft tokens, where the request asked by `explain`."""
    if not (request.params.speculation.explain and output.token_ids):
        return {}
    num_new = len(output.token_ids)
    before = [
        *request.prompt_token_ids[-NUM_CONTEXT_TOKENS:],
        *choice.token_ids[-NUM_CONTEXT_TOKENS - num_new : -num_new],
    ]
    return {"specdec": step_tokens(output, before, prompter)}


def _token_fields(
    body: CompletionBody | ChatBody,
    choice: Choice,
    requests: Sequence[GenerateRequest],
    texts: TokenTexts,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.return_token_ids:
        fields["token_ids"] = choice.token_ids
        fields["prompt_token_ids"] = requests[choice.index].prompt_token_ids
    if body.prompt_logprobs is not None and choice.prompt_logprobs is not None:
        fields["prompt_logprobs"] = prompt_logprobs_entry(choice.prompt_logprobs, texts)
    return fields
