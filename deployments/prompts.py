"""From what a caller wrote to token ids: plain text, token ids, conversations, bad words.

The gateway's share of a request, for HTTP and gRPC alike. It knows the tokenizer, and the limits
of the target only to refuse early what the engine would refuse later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import InvalidRequestError

Prompt = str | list[int]


class Prompter:
    """Tokenises for one target model. Thread-safe: the tokenizer is only read."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def encode(
        self, text: str, field: str = "prompt", add_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of plain text. Lone surrogates are refused: they are no text."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{field}: is not valid UTF-8 text ({error.reason})", field=field
            ) from None
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of a conversation, formatted by the model's chat template.

        Raises InvalidRequestError where the model has none or the template refuses the messages.
        """
        if not messages:
            raise InvalidRequestError("messages: must hold at least one message", field="messages")
        if chat_template is None and not self.has_chat_template:
            raise InvalidRequestError(
                "messages: this model has no chat template; use /v1/completions", field="messages"
            )
        arguments = dict(template_arguments or {})
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=chat_template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **arguments,
            )
        except Exception as error:  # templates raise whatever they like
            raise InvalidRequestError(
                f"messages: the chat template refuses them: {error}", field="messages"
            ) from None
        # The template writes the special tokens itself.
        return self.encode(text, "messages", add_special_tokens=False)

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and as it follows a space: both token forms are banned."""
        forms: dict[tuple[int, ...], None] = {}
        for word in words:
            if not word:
                raise InvalidRequestError(
                    "bad_words: must not hold an empty word", field="bad_words"
                )
            for text in (word.lstrip(" "), " " + word.lstrip(" ")):
                ids = tuple(self.encode(text, "bad_words", add_special_tokens=False))
                if ids:
                    forms[ids] = None
        return tuple(forms)
