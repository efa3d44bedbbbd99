"""Which sequence tries more draft tokens than pay, so that better times are noticed.

A proposal at K shows what every shorter K would have given; only deeper K and the way back from 0
must be tried on purpose. Trials are paid from a small share of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

# Of all time while nothing is drafted, and while something is: then only depth is in question.
SHARE_OFF = 0.01
SHARE_ON = 0.003
MAX_FREE_IN_A_ROW = 8
MAX_SAVED_PROBES = 2.0


@dataclass(frozen=True, slots=True)
class ProbeOption:
    """A sequence that got `k` of at most `max_k` draft tokens."""

    row: int
    seq_id: int
    k: int
    max_k: int

    @property
    def probe_k(self) -> int:
        """One token more is the cheapest question; from k = 0, whether drafting pays again."""
        return self.k + 1


class Prober:
    """Spends a small share of all step time on probes, the sequence that waited longest first.

    A probe from k = 0 that is fully accepted, to the surprise of who asks, is followed by another
    at once, free of charge: that is how speculation comes back within a few steps.
    """

    def __init__(self) -> None:
        self.num_probes = 0
        self._credit_s = 0.0
        self._last_price_s = 0.0
        self._turn = 0
        self._last_turn: dict[int, int] = {}
        self._awaited: int | None = None
        self._follow_up: int | None = None
        self._free_left = MAX_FREE_IN_A_ROW

    def end_step(self, step_s: float, is_on: bool) -> None:
        """A step is over, outcomes included; `is_on`: whether speculation was decided to pay."""
        self._credit_s += (SHARE_ON if is_on else SHARE_OFF) * step_s
        self._awaited = None

    @property
    def is_due(self) -> bool:
        """Whether it is worth looking for an option: the last price asked could be paid."""
        return self._follow_up is not None or self._credit_s >= self._last_price_s

    @property
    def follow_up(self) -> int | None:
        """The sequence whose last probe succeeded, and that is to be tried again at once."""
        return self._follow_up

    def longest_waiting(self, seq_ids: SequenceOf[int]) -> int:
        """Index of the sequence whose last probe is longest ago, the first of those never tried."""
        turns = [self._last_turn.get(seq_id, -1) for seq_id in seq_ids]
        return turns.index(min(turns))

    def choose(
        self, options: SequenceOf[ProbeOption], price_s: Callable[[ProbeOption], float]
    ) -> ProbeOption | None:
        """The option to try in this step, if any; `price_s` is the time it adds to the step."""
        if not options:
            return None
        again = next((o for o in options if o.seq_id == self._follow_up and o.k == 0), None)
        self._follow_up = None
        if again and self._free_left > 0:
            self._free_left -= 1
            return self._start(again)
        option = min(options, key=lambda o: (o.k > 0, self._last_turn.get(o.seq_id, -1)))
        price = self._last_price_s = price_s(option)
        self._credit_s = min(self._credit_s, MAX_SAVED_PROBES * price)
        if self._credit_s < price or (price <= 0 and option.k > 0):
            return None
        self._credit_s -= price
        self._free_left = MAX_FREE_IN_A_ROW
        return self._start(option)

    def _start(self, option: ProbeOption) -> ProbeOption:
        self.num_probes += 1
        self._turn += 1
        self._last_turn[option.seq_id] = self._turn
        self._awaited = option.seq_id if option.k == 0 else None
        return option

    def outcome(self, seq_id: int, num_drafted: int, num_accepted: int) -> bool | None:
        """Whether a probe from k = 0 was accepted whole; None where this was none, or was not
        answered."""
        if seq_id != self._awaited or num_drafted == 0:
            return None
        return num_accepted == num_drafted

    def try_again(self, seq_id: int) -> None:
        """Follow a probe with another one in the next step, free of charge."""
        self._follow_up = seq_id

    def close(self, seq_id: int) -> None:
        """Forget a sequence; no probe is awaited of it, and none follows."""
        self._last_turn.pop(seq_id, None)
        if self._awaited == seq_id:
            self._awaited = None
        if self._follow_up == seq_id:
            self._follow_up = None
