"""Clients that stream all the time, and what became of their streams (see `rollover.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from specdec import Client
from specdec.errors import SpecdecError

# Longer than the service gives a request.
STREAM_TIMEOUT_S = 660.0
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was",
    "The three primary colours are",
    "Water boils when",
    "My favourite book is about",
    "To bake bread you need",
    "The history of the bicycle begins",
    "In the morning the sailors",
)


@dataclass(slots=True)
class Stream:
    """One request. `gaps_s`: from its start to the first tokens, and between tokens after that."""

    number: int
    token_ids: list[int] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    num_accepted: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of what ran while something happened. `seconds`: until it was over."""

    event: str
    seconds: float
    requests: int
    failed: int
    cut: int
    differing: int
    accepted: int
    longest_first_s: float
    longest_gap_s: float

    @property
    def is_clean(self) -> bool:
        return self.failed == self.cut == self.differing == 0


class Clients:
    """`number` clients that each stream the same request again and again."""

    def __init__(self, address: str, number: int, max_tokens: int) -> None:
        self._address = address
        self._number = number
        self._max_tokens = max_tokens

    def alone(self) -> list[list[int]]:
        """Every request once, without speculation: what all texts must be."""
        found = []
        with Client(self._address) as client:
            for number in range(self._number):
                done = self._stream(client, number, {"mode": "off"})
                if done.error is not None:
                    raise SystemExit(f"no reference: {done.error}")
                found.append(done.token_ids)
        return found

    def stream_during(self, event: Callable[[], None]) -> tuple[list[Stream], float]:
        """All requests from before the event begins until each ran once more after it."""
        ended = threading.Event()
        finished: list[Stream] = []
        started = threading.Barrier(self._number + 1, timeout=STREAM_TIMEOUT_S)

        def work(number: int) -> None:
            with Client(self._address) as client:
                started.wait()
                while True:
                    is_last = ended.is_set()
                    finished.append(self._stream(client, number, {"mode": "fixed", "k": 3}))
                    if is_last:
                        return

        threads = [
            threading.Thread(target=work, args=(n,), daemon=True) for n in range(self._number)
        ]
        for thread in threads:
            thread.start()
        started.wait()
        begun_s = time.monotonic()
        try:
            event()
        finally:
            ended.set()
        seconds = time.monotonic() - begun_s
        deadline_s = time.monotonic() + STREAM_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise SystemExit(f"a stream did not end within {STREAM_TIMEOUT_S:g} s")
        return finished, seconds

    def _stream(self, client: Client, number: int, speculation: dict[str, Any]) -> Stream:
        options: dict[str, Any] = {"max_tokens": self._max_tokens, "ignore_eos": True}
        options |= {"temperature": 0} if number % 2 == 0 else {"temperature": 1, "seed": number}
        done, last_s = Stream(number), time.monotonic()
        try:
            for chunk in client.generate(
                PROMPTS[number % len(PROMPTS)], **cast(Any, options), speculation=speculation
            ):
                if chunk.token_ids:
                    now_s = time.monotonic()
                    done.gaps_s.append(now_s - last_s)
                    last_s = now_s
                done.token_ids.extend(chunk.token_ids)
                done.num_accepted += chunk.num_accepted_tokens
        except SpecdecError as error:
            done.error = f"{type(error).__name__}: {error}"
        return done


def outcome(
    event: str, seconds: float, streams: Sequence[Stream], expected: Sequence[list[int]]
) -> Outcome:
    """Counts of what became of the streams."""
    whole = [each for each in streams if each.error is None]
    return Outcome(
        event=event,
        seconds=seconds,
        requests=len(streams),
        failed=sum(each.error is not None and not each.token_ids for each in streams),
        cut=sum(each.error is not None and bool(each.token_ids) for each in streams),
        differing=sum(each.token_ids != expected[each.number] for each in whole),
        accepted=sum(each.num_accepted for each in whole),
        longest_first_s=max((gap for each in whole for gap in each.gaps_s[:1]), default=0.0),
        longest_gap_s=max((gap for each in whole for gap in each.gaps_s[1:]), default=0.0),
    )
