"""A service whose steps take 10 ms and whose draft steps take 1 ms, so that all can be reckoned."""

from __future__ import annotations

import numpy as np

from specdec.simulation.costs import DraftTime, Machine
from specdec.simulation.policies import policy_setting
from specdec.simulation.service.fleet import Fleet, Service, Stretch

DRAFT_STEP_S = 0.001


class Steady(Machine):
    """10 ms for every step, whatever is in it; 1 ms for each draft step."""

    def __init__(self, step_s: float = 0.010) -> None:
        super().__init__({"draft": DraftTime(DRAFT_STEP_S), "ngram": DraftTime()}, 0.0)
        self.step_s = step_s

    def run_many_s(self, num_tokens, num_kv_tokens):
        return np.full(np.shape(num_tokens), self.step_s)


def service(requests, load, **changes) -> Service:
    values = {"drafters": ("draft",), "cost": Steady(), "max_k": 4}
    return Service(requests, load=load, **(values | changes))


def record(of: Service, policy: str = "off", until_s: float = 10.0, seed: int = 0, warm_up=0.0):
    setting = policy_setting(policy, of.drafters, of.max_k)
    return Fleet(of, setting, Stretch(-warm_up, warm_up, until_s), seed).run()
