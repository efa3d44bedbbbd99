"""Virtual time: actions in the order of their moment, and of their making where that is equal."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Events:
    """A clock that jumps from one event to the next."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._heap: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Action) -> None:
        """Let `action` happen at `time_s`, which is not past."""
        assert time_s >= self.now_s, f"{time_s} is past at {self.now_s}"
        heappush(self._heap, (time_s, next(self._numbers), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Let `action` happen `delay_s` from now."""
        self.at(self.now_s + delay_s, action)

    def run(self, until_s: float) -> None:
        """All that happens before `until_s`; then it is `until_s`."""
        while self._heap and self._heap[0][0] < until_s:
            self.now_s, _, action = heappop(self._heap)
            action()
        self.now_s = until_s
