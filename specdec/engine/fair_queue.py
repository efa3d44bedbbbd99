"""Whose turn it is: deficit round robin over tenants, counted in tokens.

After M. Shreedhar and G. Varghese, "Efficient Fair Queueing Using Deficit Round Robin" (SIGCOMM
1995). Tenants that have something to compute stand in a ring; at each visit one gets a quantum of
credit, and its turn lasts until the credit is spent or it has nothing left. A prompt can be cut
anywhere, so a turn never exceeds its credit: where the paper's bound on what two tenants that both
have something to compute got more or less than each other is a quantum and twice the largest
packet, here it is one quantum.

Two things are added. Generated tokens cannot be held back once a sequence runs, so they are
charged after the fact, down to a debt of `max_debt`: what a tenant may be made to wait for has an
end. And credit counts only while tenants contend: one that is alone owes nobody what nobody else
asked for.

Plain Python: it knows names and numbers, no sequences.
"""

from __future__ import annotations

from collections.abc import Collection


class FairQueue:
    """The ring of tenants. A step: `contend`, then `turn` and `spend` or `leave` until `turn` is
    None or the step is full; `charge` whenever tokens were generated."""

    def __init__(self, quantum: int, max_debt: int) -> None:
        if quantum <= 0 or max_debt < 0:
            raise ValueError(f"quantum {quantum} and max_debt {max_debt} leave nobody a turn")
        self._quantum = quantum
        self._max_debt = max_debt
        self._credit: dict[str, int] = {}  # the ring: in order of turns
        self._debts: dict[str, int] = {}  # of those that stand not in it
        self._done: set[str] = set()
        self._alone: str | None = None

    @property
    def num_known(self) -> int:
        """Tenants of which anything is remembered: those that contend and those in debt."""
        return len(self._credit) + len(self._debts)

    def contend(self, tenants: Collection[str]) -> None:
        """Begin a step: `tenants`, in any order, have something to compute, and no others."""
        self._done.clear()
        self._alone = None
        if len(tenants) <= 1:
            self._credit.clear()
            self._debts.clear()
            self._alone = next(iter(tenants), None)
            return
        for name in [name for name in self._credit if name not in tenants]:
            self._remember_debt(name, self._credit.pop(name))
        for name in tenants:
            if name not in self._credit:
                self._credit[name] = self._debts.pop(name, 0)

    def turn(self) -> tuple[str, int | None] | None:
        """Who is next, and how many tokens it may spend (None: as many as there are). None where
        all have left this step."""
        if self._alone is not None:
            return None if self._alone in self._done else (self._alone, None)
        while (name := self._first()) is not None:
            if self._credit[name] > 0:
                return name, self._credit[name]
            self._credit[name] += self._quantum
            if self._credit[name] <= 0:  # still in debt: the next visit pays more of it
                self._to_the_end(name)
        return None

    def spend(self, name: str, num_tokens: int) -> None:
        """Take from the credit of the tenant whose turn it is; a spent turn is over."""
        if name not in self._credit:
            return
        self._credit[name] -= num_tokens
        if self._credit[name] <= 0:
            self._to_the_end(name)

    def charge(self, name: str, num_tokens: int) -> None:
        """Book tokens that were generated outside a turn."""
        if name in self._credit:
            self._credit[name] = max(-self._max_debt, self._credit[name] - num_tokens)
        elif self._credit:
            self._remember_debt(name, self._debts.get(name, 0) - num_tokens)

    def leave(self, name: str) -> None:
        """The tenant can compute nothing more in this step. It keeps its place in the ring, so
        that one that waits for memory or a place is asked first in the next step."""
        self._done.add(name)

    def _first(self) -> str | None:
        return next((name for name in self._credit if name not in self._done), None)

    def _to_the_end(self, name: str) -> None:
        self._credit[name] = self._credit.pop(name)

    def _remember_debt(self, name: str, credit: int) -> None:
        """Credit is not kept by who has nothing to compute: only a debt is."""
        self._debts.pop(name, None)
        if credit < 0:
            self._debts[name] = max(-self._max_debt, credit)
