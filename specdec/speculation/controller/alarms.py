"""Alarms of the way to the drafts, with stated bounds, counted once for each time one begins."""

from __future__ import annotations

# A round trip that takes half of the target's step cannot be hidden behind it.
SLOW_SHARE = 0.5
# It ends well below the bound where it began, so that it is not counted twice for one event.
CLEARED = 0.8
MIN_ROUND_TRIPS = 20


class Alarm:
    """Whether something is amiss, and how often it has begun to be."""

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""

    def set(self, reason: str) -> None:
        """`reason`: what is amiss now; "" for nothing."""
        self.count += bool(reason) and not self.reason
        self.reason = reason


class DrafterAlarms:
    """Of one drafter, by name: `heartbeat_lost` and `slow_network`."""

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self.heartbeat_lost = Alarm()
        self.slow_network = Alarm()

    def observe_heartbeat(self, is_silent: bool) -> None:
        """is_silent: a replica was not heard of for three heartbeats, or is gone unannounced."""
        text = f"{self._drafter}: no heartbeat from a draft replica"
        self.heartbeat_lost.set(text if is_silent else "")

    def observe_network(self, p95_s: float, num_round_trips: int, step_s: float) -> None:
        """p95_s: of `num_round_trips`; step_s: what a step of the target takes now."""
        bound_s = SLOW_SHARE * step_s * (CLEARED if self.slow_network.reason else 1.0)
        is_slow = num_round_trips >= MIN_ROUND_TRIPS and p95_s > bound_s
        text = (
            f"{self._drafter}: the network's p95 of {p95_s * 1000:.1f} ms exceeds half of a "
            f"target step of {step_s * 1000:.1f} ms"
        )
        self.slow_network.set(text if is_slow else "")

    @property
    def reason(self) -> str:
        """The worse of what is amiss now; "" where nothing is."""
        return self.heartbeat_lost.reason or self.slow_network.reason
