"""What a step costs: seconds of the target and of each drafter, learned while they run.

Knows times, tokens and KV lengths. Nothing here looks at acceptance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.speculation.controller.acceptance import prior_of
from specdec.speculation.controller.alarms import DrafterAlarms
from specdec.speculation.controller.drafter_cost import DrafterCost
from specdec.speculation.controller.interface import MIN_STEP_S, DrafterTiming
from specdec.speculation.controller.latency_curve import TRUSTED, LatencyCurve
from specdec.speculation.controller.policy import ProposeCost
from specdec.speculation.controller.profile import CostSeed, ProfilePoint

__all__ = ["TRUSTED", "CostModel", "ProfilePoint"]

Floats = NDArray[np.float64]
Amount = tuple[int, int]  # deepest k, draft tokens of all sequences

# A row more costs about this part of a step while the step reads weights, not rows.
RELATIVE_TOKEN_S = 0.04
STEP_RATE = 0.1


class CostModel:
    """Seconds of a step = the target's over (tokens, KV tokens) + what each drafter is charged."""

    def __init__(self, max_k: int, profile: SequenceOf[ProfilePoint] = ()) -> None:
        self._max_k = max_k
        self.run = LatencyCurve(RELATIVE_TOKEN_S, starts_at_zero=False)
        self._recent_run_s = 0.0
        self._drafters: dict[str, DrafterCost] = {}
        self._alarms: dict[str, DrafterAlarms] = {}
        self.seed(CostSeed(steps=tuple(profile)))

    def seed(self, seed: CostSeed) -> None:
        """Start from times that were measured before."""
        if seed.graph_sizes:
            self.run.pad_to(seed.graph_sizes)
        self.run.seed((s.num_tokens, s.num_kv_tokens, s.seconds) for s in seed.steps)
        for name, rounds in seed.drafts.items():
            self._drafter(name).seed(
                [(r.depth, r.num_sequences * r.depth, r.seconds) for r in rounds]
            )

    # -- the target ----------------------------------------------------------------------------

    def run_s(self, num_tokens: ArrayLike, num_kv_tokens: float) -> Floats:
        """Seconds of the target's run at each number of tokens; needs one measurement."""
        return self.run.predict(num_tokens, num_kv_tokens)

    def observe_run(self, num_tokens: int, num_kv_tokens: int, seconds: float) -> None:
        """Learn from one run; what is left of a step beside its wait may be nothing."""
        seconds = max(seconds, MIN_STEP_S)
        self.run.observe(num_tokens, num_kv_tokens, seconds)
        self._recent_run_s += STEP_RATE * (seconds - self._recent_run_s)

    # -- drafters ------------------------------------------------------------------------------

    def num_proposals(self, drafter: str) -> int:
        """How many waits, live or measured before, this drafter's cost was learned from."""
        cost = self._drafters.get(drafter)
        return cost.exposed.count if cost else 0

    def propose_cost(self, drafter: str) -> ProposeCost:
        """Seconds that a step is charged for a drafter: a batched draft runs as many steps as its
        deepest sequence has draft tokens. Unknown: a prior."""
        if self.num_proposals(drafter):
            return self._drafters[drafter].charged
        relative_s = prior_of(drafter).relative_draft_s
        per_step_s = relative_s * self.run.at(1, 0)
        by_depth = per_step_s * np.arange(self._max_k + 1, dtype=np.float64)
        return ProposeCost(by_depth, 0.0, relative_s == 0)

    def propose_s(self, drafter: str, depth: int, num_draft_tokens: int) -> float:
        """Seconds usually waited for `num_draft_tokens`, at most `depth` for one sequence."""
        if self.num_proposals(drafter):
            return self._drafters[drafter].wait_s(depth, num_draft_tokens)
        return float(self.propose_cost(drafter).by_depth[depth])

    def propose_error(self, drafter: str) -> float:
        """Mean relative error of `propose_s`."""
        cost = self._drafters.get(drafter)
        return cost.exposed.relative_error if cost else 0.0

    def jitter_s(self, drafters: Iterable[str]) -> float:
        """What the network may take beyond the usual, of the drafter with the most uneven one."""
        return max(
            (self._drafters[d].jitter_s for d in drafters if d in self._drafters), default=0.0
        )

    def observe_propose(
        self, asked: dict[str, Amount], seconds: float, timings: Collection[DrafterTiming] = ()
    ) -> None:
        """Learn from one wait; `asked` maps drafter -> (depth, draft tokens).

        Where nobody measured it per drafter, each is charged what the others are not expected to
        take.
        """
        waited = {t.drafter: t.waited_s for t in timings if t.waited_s is not None}
        expected = {name: self.propose_s(name, *amount) for name, amount in asked.items()}
        for name, amount in asked.items():
            others_s = sum(s for other, s in expected.items() if other != name)
            own_s = waited.get(name, max(seconds - others_s, 0.0))
            self._drafter(name).observe_wait(*amount, own_s)

    def observe_timings(self, timings: Iterable[DrafterTiming], asked: dict[str, Amount]) -> None:
        """Learn what proposers measured by themselves; `asked`: what this step asked for."""
        for timing in timings:
            cost = self._drafter(timing.drafter)
            cost.observe_timing(timing, timing.asked or asked.get(timing.drafter))
            alarms = self._alarms.setdefault(timing.drafter, DrafterAlarms(timing.drafter))
            alarms.observe_heartbeat(timing.is_silent)
            alarms.observe_network(cost.network.at(0.95), len(cost.network), self._recent_run_s)

    def _drafter(self, name: str) -> DrafterCost:
        if name not in self._drafters:
            self._drafters[name] = DrafterCost(self._max_k, prior_of(name).relative_draft_s == 0)
        return self._drafters[name]

    def snapshot(self) -> dict[str, float | str]:
        """Times of each drafter apart, and alarms, for metrics."""
        values: dict[str, float | str] = {"drift": self.run.drift}
        for name, cost in self._drafters.items():
            values[f"exposed_s_{name}"] = cost.exposed_s
            values[f"hidden_s_{name}"] = cost.hidden_s
            values[f"capacity_price_{name}"] = cost.price
            if len(cost.network):
                values[f"network_p50_s_{name}"] = cost.network.at(0.5)
                values[f"network_p95_s_{name}"] = cost.network.at(0.95)
        for name, alarms in self._alarms.items():
            values[f"alarms_heartbeat_lost_{name}"] = float(alarms.heartbeat_lost.count)
            values[f"alarms_slow_network_{name}"] = float(alarms.slow_network.count)
        values["alarm"] = "; ".join(a.reason for a in self._alarms.values() if a.reason)
        return values
