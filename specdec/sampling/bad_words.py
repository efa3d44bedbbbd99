"""Which tokens would complete a bad word: all words searched for at once, whatever they are.

An automaton over the words' beginnings (Aho and Corasick, 1975): one transition for each token of
text, however many words there are and however long. It keeps no state between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class BadWords:
    """A state stands for the longest beginning of a word that the text ends with."""

    def __init__(self, words: Sequence[Sequence[int]], vocab_size: int) -> None:
        """Words that end beyond `vocab_size` can never be completed."""
        words = [word for word in words if word[-1] < vocab_size]
        self.single_token_ids = sorted({word[0] for word in words if len(word) == 1})
        self._children: list[dict[int, int]] = [{}]
        endings: dict[int, list[int]] = {}  # by state: what completes a word
        for word in words:
            if len(word) > 1:
                endings.setdefault(self._state_of(word[:-1]), []).append(word[-1])
        self._endings = {state: np.array(ids, np.int64) for state, ids in endings.items()}
        self._fallbacks = self._find_fallbacks()
        self._endings_behind = self._find_endings_behind()
        self._num_needed = max((len(word) - 1 for word in words), default=0)

    def _state_of(self, beginning: Sequence[int]) -> int:
        state = 0
        for token_id in beginning:
            child = self._children[state].get(token_id)
            if child is None:
                child = self._children[state][token_id] = len(self._children)
                self._children.append({})
            state = child
        return state

    def _find_fallbacks(self) -> list[int]:
        """For each state the next shorter beginning that its text ends with; shortest first."""
        fallbacks = [0] * len(self._children)
        for state in self._shortest_first():
            for token_id, child in self._children[state].items():
                fallbacks[child] = self._step(fallbacks[state], token_id, fallbacks)
        return fallbacks

    def _find_endings_behind(self) -> list[int]:
        """For each state the longest shorter beginning that its text ends with and behind which one
        token completes a word; 0 for none."""
        behind = [0] * len(self._children)
        for state in self._shortest_first():
            fallback = self._fallbacks[state]
            behind[state] = fallback if fallback in self._endings else behind[fallback]
        return behind

    def _shortest_first(self) -> Iterator[int]:
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            yield state
            queue.extend(self._children[state].values())

    def _step(self, state: int, token_id: int, fallbacks: Sequence[int]) -> int:
        while state and token_id not in self._children[state]:
            state = fallbacks[state]
        return self._children[state].get(token_id, 0)

    def endings(
        self, token_ids: Sequence[int], draft_token_ids: Sequence[int]
    ) -> Iterator[NDArray[np.int64]]:
        """Last tokens of the longer words that would complete one behind `token_ids` and the first
        j draft tokens, for j = 0, 1, ..., len(draft_token_ids)."""
        state = 0
        recent = token_ids[-self._num_needed :] if self._num_needed else ()
        for token_id in recent:
            state = self._step(state, token_id, self._fallbacks)
        yield self._endings_of(state)
        for token_id in draft_token_ids:
            state = self._step(state, token_id, self._fallbacks)
            yield self._endings_of(state)

    def _endings_of(self, state: int) -> NDArray[np.int64]:
        found = [_NONE]
        while state:
            found.append(self._endings.get(state, _NONE))
            state = self._endings_behind[state]
        return np.concatenate(found)
