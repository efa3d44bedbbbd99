"""Whether a draft fits a target, decided from what both say of themselves at connection.

Two models fit when they mean the same text by the same token ids. Their vocabularies may be
padded to different sizes; one protocol version is spoken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.speculation.messages import PROTOCOL_VERSION, DraftInfo, Hello

# No separators, spaces or line breaks: ids become parts of names and of log lines.
PEER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """What a target knows of itself. `vocabulary` holds its tokenizer's tokens by id ("" where an
    id has none); None where there is no tokenizer, then the hashes alone must agree."""

    target_id: str
    incarnation: int
    model: str
    tokenizer_hash: str
    vocab_size: int
    vocabulary: Sequence[str] | None = None


def protocol_fault(info: DraftInfo) -> str | None:
    """Why this draft cannot be spoken to at all, or None."""
    if info.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {info.protocol_version} differs from {PROTOCOL_VERSION}"
    if max(map(len, (info.model, info.tokenizer_hash, info.drafter_kind))) > MAX_NAME:
        return f"a name of more than {MAX_NAME} characters"
    return None


def id_fault(peer_id: str) -> str | None:
    """Why nobody may be called so, or None."""
    if PEER_ID.fullmatch(peer_id) is None:
        return "an id is 1 to 64 letters, digits, dots, hyphens and underscores"
    return None


def hello_fault(hello: Hello) -> str | None:
    """Why nothing can be drafted for a target that says this of itself, or None."""
    if hello.vocab_size <= 0:
        return f"vocab_size {hello.vocab_size} leaves no token to draft"
    if len(hello.model) > MAX_NAME:
        return f"model: a name of more than {MAX_NAME} characters"
    return id_fault(hello.target_id)


def vocabulary_fault(target: Sequence[str], draft: Sequence[str]) -> str | None:
    """The first difference between two vocabularies, in words, or None where they agree.

    Ids beyond the end of the shorter one count as without a token.
    """
    for token_id in range(max(len(target), len(draft))):
        ours = target[token_id] if token_id < len(target) else ""
        theirs = draft[token_id] if token_id < len(draft) else ""
        if ours != theirs:
            return f"token {token_id} differs: {ours!r} here, {theirs!r} at the draft"
    return None
