"""From what a caller wrote to token ids: plain text, token ids, conversations, bad words.

The gateway's share of a request, for HTTP and gRPC alike. It knows the tokenizer, and the limits
of the target only to refuse early what the engine would refuse later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import InvalidRequestError
from specdec.model.token_bytes import TokenBytes
from specdec.model.tokenizer import tokenizer_hash
from specdec.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS

Prompt = str | list[int]
MAX_TEMPLATE_ERROR = 200
MAX_MESSAGES = 2048


class Prompter:
    """Tokenises for one target model. Thread-safe: the tokenizer is only read.

    `max_token_chars`: no token stands for more characters. A text longer than that times the
    context cannot fit it, which is found without tokenising.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = TokenBytes(tokenizer)
        # A token's name in the vocabulary is never shorter than its text: byte-level names have a
        # character per byte, SentencePiece writes a space as one character.
        self.max_token_chars = max(len(token) for token in tokenizer.get_vocab())
        self._hash: str | None = None
        self._hashing = threading.Lock()
        # The first call sets the tokenizer's padding and truncation; threads must find them set.
        tokenizer.encode("")

    def tokenizer_hash(self) -> str:
        """As `model.tokenizer` has it. It takes half a second, once."""
        with self._hashing:
            if self._hash is None:
                self._hash = tokenizer_hash(self.tokenizer)
            return self._hash

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def encode(
        self,
        text: str,
        field: str = "prompt",
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        keep_end: bool = False,
    ) -> list[int]:
        """Token ids of plain text. Lone surrogates are refused: they are no text.

        Text that cannot have as few as `max_tokens` tokens is refused before it is tokenised; with
        `keep_end`, its beginning is dropped instead.
        """
        if max_tokens is not None:
            text = self._bounded(text, field, max_tokens, keep_end)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{field}: is not valid UTF-8 text ({error.reason})", field=field
            ) from None
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def _bounded(self, text: str, field: str, max_tokens: int, keep_end: bool) -> str:
        limit = max_tokens * self.max_token_chars
        if len(text) <= limit:
            return text
        if keep_end:
            return text[-limit:]
        raise InvalidRequestError(
            f"{field}: {len(text)} characters cannot fit {max_tokens} tokens", field=field
        )

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The tokenizer's own reading of these ids."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        *,
        max_tokens: int | None = None,
        keep_end: bool = False,
    ) -> list[int]:
        """Token ids of a conversation, formatted by the model's chat template.

        `continue_final_message` leaves the last turn open, so that the output continues it.
        `max_tokens` and `keep_end` are those of `encode`, for the formatted text. Raises
        InvalidRequestError where the model has none or the template refuses the messages.
        """
        if not messages:
            raise InvalidRequestError("messages: must hold at least one message", field="messages")
        if chat_template is None and not self.has_chat_template:
            raise InvalidRequestError(
                "messages: this model has no chat template; use /v1/completions", field="messages"
            )
        arguments = dict(template_arguments or {})
        try:
            template = self.tokenizer.get_chat_template(chat_template, arguments.get("tools"))
            text = self.tokenizer.apply_chat_template(
                [_known_role(message, template) for message in messages],
                chat_template=chat_template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                **arguments,
            )
        except Exception as error:  # templates raise whatever they like
            raise InvalidRequestError(
                f"messages: the chat template refuses them: {str(error)[:MAX_TEMPLATE_ERROR]}",
                field="messages",
            ) from None
        # The template writes the special tokens itself.
        return self.encode(
            text, "messages", add_special_tokens=False, max_tokens=max_tokens, keep_end=keep_end
        )

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and as it follows a space: both token forms are banned."""
        if len(words) > MAX_BAD_WORDS:
            raise InvalidRequestError(
                f"bad_words: at most {MAX_BAD_WORDS} words, got {len(words)}", field="bad_words"
            )
        forms: dict[tuple[int, ...], None] = {}
        for word in words:
            if not word:
                raise InvalidRequestError(
                    "bad_words: must not hold an empty word", field="bad_words"
                )
            for text in (word.lstrip(" "), " " + word.lstrip(" ")):
                ids = tuple(self._bad_word(text))
                if ids:
                    forms[ids] = None
        return tuple(forms)

    def _bad_word(self, text: str) -> list[int]:
        return self.encode(
            text, "bad_words", add_special_tokens=False, max_tokens=MAX_BAD_WORD_TOKENS
        )


def _known_role(message: Mapping[str, Any], template: str) -> dict[str, Any]:
    """OpenAI's newer models call `developer` what templates know as `system`."""
    is_unknown = message["role"] == "developer" and "developer" not in template
    return {**message, "role": "system"} if is_unknown else dict(message)
