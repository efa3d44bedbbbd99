"""Histograms with fixed edges, as Prometheus counts them: cheap enough for every step.

Edges are the same in every replica and release, or sums over a fleet would mean nothing.
"""

from __future__ import annotations

from bisect import bisect_left

# Seconds that a client waits: from 1 ms, since speculation brings tokens in bursts, to the 10 min
# of a request that queued for as long as it may.
LATENCY_EDGES = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
# Seconds of a part of a step: a message to a draft and back is below 1 ms in one rack.
STEP_EDGES = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


class Histogram:
    """Counts of values up to each edge, the edge included, and their sum."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...] = LATENCY_EDGES) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)  # the last: above every edge
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __copy__(self) -> Histogram:
        """A reading that does not change while the original goes on counting."""
        twin = Histogram(self.edges)
        twin.counts, twin.total = self.counts.copy(), self.total
        return twin


class Histograms(dict[str, Histogram]):
    """By name of a drafter: made where the first value comes."""

    def observe(self, name: str, value: float) -> None:
        if name not in self:
            self[name] = Histogram(STEP_EDGES)
        self[name].observe(value)

    def __copy__(self) -> Histograms:
        return Histograms({name: each.__copy__() for name, each in tuple(self.items())})
