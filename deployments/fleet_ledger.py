"""The last counters of every target replica that ever lived, so that the fleet's never fall.

A restarted replica counts from zero and has a new id: what its predecessor had counted stays.
Ledgers can be merged in any order and any number of times: all counters grow, so the larger of two
readings of one replica is the later one.
"""

from __future__ import annotations

from collections.abc import Mapping

from deployments.samples import Samples

# Of the oldest, the counters are let go: once, the fleet's then fall. At one restart in ten
# minutes that is after a week.
MAX_REPLICAS = 1024

LEDGER_ACTOR = "fleet_ledger"


class FleetLedger:
    """Counters by replica id. As an actor of the gateway's deployment it is what all gateway
    replicas share, so that it does not matter which of them is scraped; each has one of its own
    beside it, from which a restarted actor is filled again."""

    def __init__(self, max_replicas: int = MAX_REPLICAS) -> None:
        self._max_replicas = max_replicas
        self._replicas: dict[str, Samples] = {}
        self._totals: Samples = {}

    def merge(self, replicas: Mapping[str, Samples]) -> dict[str, Samples]:
        """Take readings in; returns all that is known, by replica."""
        for replica_id, samples in list(replicas.items()):
            # To the end: the first ones to be let go are those that were not heard of for longest.
            known = self._replicas[replica_id] = self._replicas.pop(replica_id, {})
            for key, value in samples.items():
                grown = value - known.get(key, 0)
                if grown > 0 or key not in known:
                    known[key] = value
                    self._totals[key] = self._totals.get(key, 0) + grown
        while len(self._replicas) > self._max_replicas:
            for key, value in self._replicas.pop(next(iter(self._replicas))).items():
                self._totals[key] -= value
        return self._replicas

    def totals(self) -> Samples:
        """The fleet's counters. Kept up to date by `merge`: to add up all that ever lived would
        take longer with every restart."""
        return dict(self._totals)
