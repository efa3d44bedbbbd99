"""The bytes that a token adds to a text, for every kind of tokenizer.

Read from the vocabulary and the decoder's rules, never from decoded text: a token that is a part of
a character keeps its own bytes. The bytes of all tokens, joined, are the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Write = Callable[[str], bytes]
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# WordPiece's clean-up, in its order: what English writes without the space.
_CLEANED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {ending}", ending) for ending in ("'s", "'ve", "'re")),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How pieces (the vocabulary's strings) become a text.

    inside: what a piece adds behind another one.
    first: what it adds at the beginning of a text.
    rest: what a piece leaves to be written before the next one.
    """

    inside: Write
    first: Write
    rest: Write | None = None


class TokenBytes:
    """The vocabulary of one tokenizer as bytes; each token is worked out once, when first met.

    Takes a `tokenizers.Tokenizer`, a transformers tokenizer over one, or any that decodes: of the
    last kind the bytes are what a token adds to the decoded text, so that there a part of a
    character that has no `<0x..>` piece is U+FFFD. Thread-safe.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._decode = backend.decode
        if hasattr(backend, "to_str"):
            self._piece: Callable[[int], str | None] = backend.id_to_token
            self.special_ids = frozenset(
                token_id
                for token_id, token in backend.get_added_tokens_decoder().items()
                if token.special
            )
            self._rules = rules_of(json.loads(backend.to_str())["decoder"])
        else:
            self._piece = backend.convert_ids_to_tokens
            self.special_ids = frozenset(backend.all_special_ids)
            self._rules = None
        self._inside: dict[int, bytes] = {}
        self._first: dict[int, bytes] = {}

    def is_written(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether a token is part of the text at all."""
        is_skipped = skip_special_tokens and token_id in self.special_ids
        return not is_skipped and self._piece(token_id) is not None

    def of(self, token_id: int, before: int | None) -> bytes:
        """What `token_id` adds to a text whose last written token is `before`; None: to no text.

        An id that the vocabulary lacks (models pad theirs) adds nothing.
        """
        rules = self._rules
        if rules is None:
            return self._added(token_id, before)
        if before is None:
            return self._known(self._first, rules.first, token_id)
        added = self._known(self._inside, rules.inside, token_id)
        if rules.rest is None:
            return added
        return rules.rest(self._piece(before) or "") + added

    def _known(self, known: dict[int, bytes], write: Write, token_id: int) -> bytes:
        found = known.get(token_id)
        if found is None:
            piece = self._piece(token_id)
            found = known[token_id] = b"" if piece is None else write(piece)
        return found

    def _added(self, token_id: int, before: int | None) -> bytes:
        """By decoding in context, for a decoder whose rules are not known."""
        is_byte = _BYTE_PIECE.fullmatch(self._piece(token_id) or "")
        if is_byte:
            return bytes([int(is_byte[1], 16)])
        context = [] if before is None else [before]
        known, full = (
            str(self._decode(ids, skip_special_tokens=False))
            for ids in (context, [*context, token_id])
        )
        if not full.startswith(known):
            full, known = str(self._decode([token_id], skip_special_tokens=False)), ""
        return full[len(known) :].encode()


class TokenWalk:
    """Walks along a text token by token and tells the bytes that each adds.

    prompt_token_ids: what the text continues, since many decoders write a text's first token
        without its space. They are not walked.
    """

    def __init__(
        self,
        vocabulary: TokenBytes,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        written = (i for i in reversed(prompt_token_ids) if vocabulary.is_written(i, self._skip))
        self._before = next(written, None)

    def step(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds to the text: none where it is skipped."""
        if not self._vocabulary.is_written(token_id, self._skip):
            return b""
        added = self._vocabulary.of(token_id, self._before)
        self._before = token_id
        return added

    def written_here(self, token_id: int) -> bytes:
        """The bytes of `token_id` as the next token, a skipped special one by its name."""
        return self._vocabulary.of(token_id, self._before)

    def added_here(self, token_id: int) -> bytes:
        """What `step` would return, without the step."""
        is_written = self._vocabulary.is_written(token_id, self._skip)
        return self.written_here(token_id) if is_written else b""


def text_of(vocabulary: TokenBytes, token_ids: Iterable[int], skip_special_tokens: bool) -> str:
    """The whole text of `token_ids`; bytes that are no UTF-8 become U+FFFD."""
    walk = TokenWalk(vocabulary, (), skip_special_tokens)
    return b"".join(map(walk.step, token_ids)).decode(errors="replace")


# -- decoders of the `tokenizers` library, as a tokenizer.json has them --------------------------


def rules_of(decoder: Mapping[str, Any] | None) -> Rules | None:
    """The rules of a serialised decoder; None where they are not known."""
    if decoder is None:
        return Rules(lambda piece: f" {piece}".encode(), str.encode)
    match decoder["type"]:
        case "Metaspace":
            return _metaspace(decoder)
        case "WordPiece":
            return _word_piece(decoder)
        case "BPEDecoder":
            return _suffixed(decoder["suffix"])
        case "Sequence":
            return _chain(decoder["decoders"])
        case _:
            return _chain([decoder])


def _metaspace(decoder: Mapping[str, Any]) -> Rules:
    mark = decoder["replacement"]
    is_prepended = decoder["prepend_scheme"] != "never"

    def inside(piece: str) -> bytes:
        return piece.replace(mark, " ").encode()

    def first(piece: str) -> bytes:
        return piece.replace(mark, "").encode()

    return Rules(inside, first if is_prepended else inside)


def _word_piece(decoder: Mapping[str, Any]) -> Rules:
    prefix, cleans = decoder["prefix"], decoder["cleanup"]

    def cleaned(text: str) -> bytes:
        for written, clean in _CLEANED if cleans else ():
            text = text.replace(written, clean)
        return text.encode()

    def inside(piece: str) -> bytes:
        continues = piece.startswith(prefix)
        return cleaned(piece.removeprefix(prefix) if continues else f" {piece}")

    return Rules(inside, cleaned)


def _suffixed(suffix: str) -> Rules:
    def written(piece: str) -> bytes:
        return piece.removesuffix(suffix).encode()

    return Rules(written, written, lambda piece: b" " if piece.endswith(suffix) else b"")


def _chain(decoders: Sequence[Mapping[str, Any]]) -> Rules | None:
    """A chain that works on each piece alone, but for the space that it strips from the text."""
    steps: list[Callable[[str], str | bytes]] = []
    stripped = b""
    is_fused = False
    for decoder in decoders:
        match decoder:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not is_fused:
                steps.append(_replace(old, new))
            case {"type": "ByteFallback"} if not is_fused:
                steps.append(_byte_fallback)
            case {"type": "ByteLevel"} if not is_fused:
                steps.append(_byte_level)
                is_fused = True
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": content, "start": 1, "stop": 0} if is_fused:
                stripped = content.encode()
            case _:
                return None

    def inside(piece: str) -> bytes:
        written: str | bytes = piece
        for step in steps:
            if isinstance(written, str):
                written = step(written)
        return written.encode() if isinstance(written, str) else written

    return Rules(inside, lambda piece: inside(piece).removeprefix(stripped))


def _replace(old: str, new: str) -> Callable[[str], str]:
    return lambda piece: piece.replace(old, new)


def _byte_fallback(piece: str) -> str | bytes:
    is_byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(is_byte[1], 16)]) if is_byte else piece


def _byte_level(piece: str) -> bytes:
    """A character for each byte; a piece with any other character (an added token) is plain."""
    try:
        return bytes(_BYTE_OF[character] for character in piece)
    except KeyError:
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """The byte that a character stands for, as byte-level vocabularies have it since GPT-2:
    printable ASCII and Latin-1 for themselves, the rest in order from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    known = {chr(byte): byte for byte in plain}
    return known | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()
