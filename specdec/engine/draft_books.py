"""How much of a draft's memory each target's text takes, apart from keys and values.

Counts sessions and tokens per target and in total and says what is too much; it holds no text. The
bounds are checked before a text is kept, so that a target that opens without end costs itself its
drafts and nobody anything.
"""

from __future__ import annotations

from collections import Counter

from specdec.config import DraftLimits
from specdec.params import SamplingParams

# A parameter's entry in a dictionary takes about as much as three tokens of text.
TOKENS_PER_ENTRY = 3
CHARACTERS_PER_TOKEN = 32


def params_size(params: SamplingParams) -> int:
    """What is kept of a request's parameters, in tokens of text."""
    num_ids = sum(len(word) for word in params.bad_words_token_ids) + len(params.stop_token_ids)
    num_ids += len(params.allowed_token_ids or ())
    num_characters = sum(len(text) for text in params.stop)
    return (
        num_ids + TOKENS_PER_ENTRY * len(params.logit_bias) + num_characters // CHARACTERS_PER_TOKEN
    )


class Books:
    """Sessions and their sizes in tokens."""

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._sizes: dict[tuple[str, int], int] = {}
        self._num_sessions: Counter[str] = Counter()
        self._num_tokens: Counter[str] = Counter()
        self._total_tokens = 0

    def takes(self, target: str, size: int) -> bool:
        """Whether one session of `size` tokens more is within the bounds."""
        return (
            len(self._sizes) < self._limits.max_sessions
            and self._num_sessions[target] < self._limits.max_sessions_per_target
            and self._fits(target, size)
        )

    def add(self, key: tuple[str, int], size: int) -> None:
        """A session that was not known; `key` is (target, session id)."""
        self._sizes[key] = 0
        self._num_sessions[key[0]] += 1
        self.grow(key, size)

    def grow(self, key: tuple[str, int], num_tokens: int) -> bool:
        """Count tokens that were added; False where that was too much."""
        self._sizes[key] += num_tokens
        self._num_tokens[key[0]] += num_tokens
        self._total_tokens += num_tokens
        return self._fits(key[0], 0)

    def shrink(self, key: tuple[str, int]) -> None:
        """The session is kept by its name alone."""
        self.grow(key, -self._sizes[key])

    def remove(self, key: tuple[str, int]) -> None:
        self.shrink(key)
        del self._sizes[key]
        self._num_sessions[key[0]] -= 1
        if not self._num_sessions[key[0]]:
            del self._num_sessions[key[0]], self._num_tokens[key[0]]

    def check(self, sizes: dict[tuple[str, int], int]) -> None:
        """AssertionError unless these are the sessions and their sizes."""
        assert sizes == self._sizes
        assert self._total_tokens == sum(sizes.values()) == sum(self._num_tokens.values())

    def _fits(self, target: str, num_more: int) -> bool:
        return (
            self._num_tokens[target] + num_more <= self._limits.max_text_tokens_per_target
            and self._total_tokens + num_more <= self._limits.max_text_tokens
        )
