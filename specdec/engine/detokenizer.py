"""Token ids to text, a few tokens at a time, never half a character.

Knows only how to call a tokenizer's `decode`. Stop strings and finish reasons are
`engine/output.py`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
# Decoding a short tail costs a few microseconds; a longer window is cut back this often.
WINDOW_TOKENS = 16
CONTEXT_TOKENS = 6


class TokenDecoder(Protocol):
    """The part of a tokenizer that is needed here (`tokenizers` and `transformers` both fit)."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> Any:
        """The text of `token_ids`; bytes that are no UTF-8 become U+FFFD."""
        ...


class IncrementalDetokenizer:
    """Decodes a growing output: the concatenation of what `push` and `flush` return is the text.

    It decodes a window that starts a few tokens before the new one, since decoders treat the first
    token of a text apart (SentencePiece strips its space). The window begins in the prompt, so that
    prompt + output reads as one text. Text once returned is never taken back.
    """

    def __init__(
        self,
        tokenizer: TokenDecoder,
        prompt_token_ids: SequenceOf[int],
        skip_special_tokens: bool,
    ) -> None:
        # The Rust tokenizer under a transformers one: faster, and without the clean-up of spaces
        # that rewrites text already returned.
        self._decoder: TokenDecoder = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])
        context = self._decode(self._window)
        if context.endswith(REPLACEMENT):
            # The prompt ends inside a character: its bytes are not the output's to complete.
            self._window, context = [], ""
        self._returned = len(context)
        self._anchor = len(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._decoder.decode(token_ids, skip_special_tokens=self._skip_special_tokens))

    def push(self, token_id: int) -> str:
        """Add one token; the text that is certain now, often empty inside a character.

        Every U+FFFD at the end is uncertain: a byte-level decoder shows an unfinished character as
        one, a byte-fallback decoder (SentencePiece) shows the whole run of bytes before it so.
        """
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = len(text.rstrip(REPLACEMENT))
        if certain <= self._returned:
            return ""
        delta = text[self._returned : certain]
        self._returned = certain
        if certain == len(text):
            self._shorten()
        return delta

    def _shorten(self) -> None:
        """Drop tokens before the anchor, the last position where a long window ended cleanly."""
        if len(self._window) - self._anchor < WINDOW_TOKENS:
            return
        tail = self._window[self._anchor :]
        tail_text = self._decode(tail)
        if tail_text:  # else only special tokens: the next would be decoded as a text's first
            self._window = tail
            self._returned = len(tail_text)
        self._anchor = len(self._window)

    def flush(self) -> str:
        """What was held back for want of the rest of a character, as U+FFFD. Call once, last."""
        text = self._decode(self._window)
        delta = text[self._returned :]
        self._returned = max(self._returned, len(text))
        return delta
