"""Log-probabilities in OpenAI's two shapes and vLLM's: how tokens are spelt, where they begin.

A token's bytes are its own, also where it is a part of a character: the `bytes` of a choice's
tokens, joined, are its text (before a stop string cut it). The walks remember what was written
before, so that chunks of a stream say what the whole answer would.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from specdec.model.token_bytes import TokenBytes, TokenWalk
from specdec.sequence import TokenLogprobs

_Decoder = codecs.getincrementaldecoder("utf-8")


def spelt(raw: bytes) -> str:
    """The text of a token; where it is none alone, its bytes as OpenAI's chat API writes them:
    `\\xf0\\x9f`, printable ASCII as it is."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(
            chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in raw
        )


def named(raw: bytes) -> str:
    """As `spelt`, with the mark that the completions API sets before bytes: `bytes:\\xf0\\x9f`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"bytes:{spelt(raw)}"


class Offsets:
    """Counts the characters of a text that grows token by token."""

    def __init__(self) -> None:
        self._num = 0
        self._decoder = _Decoder("replace")

    def take(self, raw: bytes) -> int:
        """The place of the character in which a token of these bytes begins."""
        if not raw:
            return self._num
        num_ended = len(self._decoder.decode(raw[:1]))
        is_open = bool(self._decoder.getstate()[0])
        start = self._num + num_ended - (not is_open)
        self._num += num_ended + len(self._decoder.decode(raw[1:]))
        return start

    def end(self) -> None:
        """The text ends here, maybe within a character; what follows is another's."""
        self._num += len(self._decoder.decode(b"", final=True))


class CompletionLogprobs:
    """The `logprobs` objects of one choice of /v1/completions, chunk by chunk or whole.

    echoed: the prompt, where it is part of the text, else None.
    """

    def __init__(
        self,
        vocabulary: TokenBytes,
        prompt_token_ids: Sequence[int],
        *,
        echo: bool,
        skip_special_tokens: bool,
        as_token_ids: bool,
    ) -> None:
        self._prompt = prompt_token_ids
        self._echo = echo
        self._as_token_ids = as_token_ids
        walked = () if echo else prompt_token_ids
        self._walk = TokenWalk(vocabulary, walked, skip_special_tokens)
        self._offsets = Offsets()

    def of(
        self,
        positions: Sequence[TokenLogprobs],
        prompt_positions: Sequence[TokenLogprobs | None] | None,
    ) -> dict[str, Any]:
        """Of these output tokens and, in an echo, of the prompt before them (with the first)."""
        result: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        if self._echo and prompt_positions:
            for token_id, position in zip(self._prompt, prompt_positions, strict=True):
                self._add(result, token_id, position)
            self._offsets.end()
        for position in positions:
            self._add(result, position.token_id, position)
        return result

    def _add(
        self, result: dict[str, list[Any]], token_id: int, position: TokenLogprobs | None
    ) -> None:
        """`position`: None for a prompt's first token, which nothing predicts."""
        key = self._key(token_id)
        result["tokens"].append(key)
        result["token_logprobs"].append(None if position is None else position.logprob)
        result["top_logprobs"].append(None if position is None else self._top(position, key))
        result["text_offset"].append(self._offsets.take(self._walk.step(token_id)))

    def _key(self, token_id: int) -> str:
        if self._as_token_ids:
            return f"token_id:{token_id}"
        return named(self._walk.written_here(token_id))

    def _top(self, position: TokenLogprobs, own_key: str) -> dict[str, float]:
        """Likeliest first, and the position's own token always: one entry more where it is not
        among them. Of tokens with the same text the own one has it as its key, else the likeliest;
        the others go by their ids."""
        entries = position.top
        if all(token_id != position.token_id for token_id, _ in entries):
            entries = [*entries, (position.token_id, position.logprob)]
        result: dict[str, float] = {}
        for token_id, logprob in entries:
            key = self._key(token_id)
            if token_id != position.token_id and (key == own_key or key in result):
                key = f"token_id:{token_id}"
            result[key] = logprob
        return result


class ChatLogprobs:
    """The `logprobs` objects of one choice of /v1/chat/completions, chunk by chunk or whole."""

    def __init__(
        self,
        vocabulary: TokenBytes,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        as_token_ids: bool,
    ) -> None:
        self._as_token_ids = as_token_ids
        self._walk = TokenWalk(vocabulary, prompt_token_ids, skip_special_tokens)

    def of(self, positions: Iterable[TokenLogprobs]) -> dict[str, Any]:
        return {"content": [self._position(position) for position in positions]}

    def _position(self, position: TokenLogprobs) -> dict[str, Any]:
        entry = {
            **self._entry(position.token_id, position.logprob),
            "top_logprobs": [self._entry(t, value) for t, value in position.top],
        }
        self._walk.step(position.token_id)
        return entry

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A special token that the text leaves out has a name, and no bytes."""
        written = self._walk.written_here(token_id)
        return {
            "token": f"token_id:{token_id}" if self._as_token_ids else spelt(written),
            "logprob": logprob,
            "bytes": list(self._walk.added_here(token_id)),
        }


def prompt_logprobs_entry(
    positions: Sequence[TokenLogprobs | None],
    prompt_token_ids: Sequence[int],
    vocabulary: TokenBytes,
    as_token_ids: bool,
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: one map from token id to log-probability per prompt token."""
    walk = TokenWalk(vocabulary, (), skip_special_tokens=False)
    result: list[dict[str, Any] | None] = []
    for token_id, position in zip(prompt_token_ids, positions, strict=True):
        if position is None:
            result.append(None)
        else:
            result.append(
                {
                    str(each): {
                        "logprob": logprob,
                        "rank": rank,
                        "decoded_token": f"token_id:{each}"
                        if as_token_ids
                        else spelt(walk.written_here(each)),
                    }
                    for each, logprob, rank in _ranked(position)
                }
            )
        walk.step(token_id)
    return result


def _ranked(position: TokenLogprobs) -> list[tuple[int, float, int]]:
    """(token id, log-probability, rank): the position's own, then the likeliest others."""
    own = (position.token_id, position.logprob, position.rank)
    ranked = [(token_id, value, rank) for rank, (token_id, value) in enumerate(position.top, 1)]
    return [own, *(entry for entry in ranked if entry[0] != position.token_id)]
