"""Conversations as clients send them, and as chat templates expect them.

Templates print what they are given, and know fewer roles and kinds of content than clients: null
never reaches them, a tool call's arguments are a mapping, an open turn is the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import ConfigDict

from deployments.body_fields import FIRST_FAULT, Fields, at_most
from deployments.prompts import MAX_MESSAGES
from specdec.errors import InvalidRequestError
from specdec.params import shown

MAX_CONTENT_PARTS = 1024
ContentParts = Annotated[list[dict[str, Any]], FIRST_FAULT, at_most(MAX_CONTENT_PARTS)]


class ChatMessageBody(Fields):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | ContentParts | None = None


Messages = Annotated[list[ChatMessageBody], FIRST_FAULT, at_most(MAX_MESSAGES)]


class _Conversation(Protocol):
    @property
    def messages(self) -> list[ChatMessageBody] | None: ...
    @property
    def add_generation_prompt(self) -> bool: ...
    @property
    def continue_final_message(self) -> bool: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def check_open_turn(body: _Conversation) -> None:
    """`continue_final_message` needs an assistant's turn to continue, and begins no new one."""
    if not body.continue_final_message:
        return
    if body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        raise InvalidRequestError(
            "add_generation_prompt: must be false with continue_final_message, which continues the "
            "last turn instead of beginning one",
            field="add_generation_prompt",
        )
    if body.messages and body.messages[-1].role != "assistant":
        raise InvalidRequestError(
            "continue_final_message: the last message must be the assistant's, got role "
            f"{shown(body.messages[-1].role)}",
            field="continue_final_message",
        )


def template_messages(messages: Sequence[ChatMessageBody]) -> list[dict[str, Any]]:
    """The messages as templates expect them. Raises InvalidRequestError, naming the part."""
    return [_template_message(m, f"messages.{index}") for index, m in enumerate(messages)]


def template_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools without the nulls that a template would print, those of their schemas kept."""
    return [
        {
            name: _without_nulls(value) if isinstance(value, dict) else value
            for name, value in _without_nulls(tool).items()
        }
        for tool in tools
    ]


def _template_message(message: ChatMessageBody, place: str) -> dict[str, Any]:
    more = dict(message.model_extra or {})
    refusal = more.pop("refusal", None)
    content = message.content
    if isinstance(content, list):
        is_assistant = message.role == "assistant"
        content = "".join(_text_part(part, is_assistant, f"{place}.content") for part in content)
    if not content and isinstance(refusal, str):
        content = refusal
    if "tool_calls" in more:
        more["tool_calls"] = _tool_calls(more["tool_calls"], f"{place}.tool_calls")
    return {"role": message.role, **more, "content": content or ""}


def _text_part(part: Mapping[str, Any], is_assistant: bool, place: str) -> str:
    """Text, or what the assistant said in refusing."""
    kind = part.get("type")
    if kind == "text" or (kind == "refusal" and is_assistant):
        text = part.get(kind)
        if isinstance(text, str):
            return text
    raise InvalidRequestError(
        f"{place}: parts of type {shown(kind)} are not supported; allowed: 'text' with its text, "
        "and the assistant's 'refusal'",
        field=place,
    )


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequestError(f"{place}: must be a list of objects", field=place)
    return [_tool_call(call, f"{place}.{index}") for index, call in enumerate(calls)]


def _tool_call(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    known = _without_nulls(call)
    function = known.get("function")
    if not isinstance(function, dict):
        raise InvalidRequestError(
            f"{place}.function: must be an object, got {shown(function)}",
            field=f"{place}.function",
        )
    arguments = _arguments(function.get("arguments"), f"{place}.function.arguments")
    return {**known, "function": {**_without_nulls(function), "arguments": arguments}}


def _arguments(given: Any, place: str) -> dict[str, Any]:
    """OpenAI's API has the text of a JSON object where templates want the object; none is empty."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            value = given
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"{place}: must be a JSON object, got {shown(given)}", field=place
        )
    return value


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
