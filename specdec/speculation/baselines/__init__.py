"""Published and folk rules for K, behind the same `Controller` interface as our own.

For comparison: `make_policy` builds one by name. None of them prices time, load and acceptance
together; docs/policies.md says where each of them fails.
"""

from __future__ import annotations

import re

from specdec.errors import ConfigError
from specdec.speculation.baselines.base import Baseline
from specdec.speculation.baselines.fixed import FixedPolicy
from specdec.speculation.baselines.huggingface import HeuristicPolicy
from specdec.speculation.baselines.sglang import EmaPolicy
from specdec.speculation.baselines.threshold import ThresholdPolicy
from specdec.speculation.baselines.turbospec import TurboSpecPolicy
from specdec.speculation.baselines.vllm import TablePolicy
from specdec.speculation.controller.interface import Controller

DEFAULT_MAX_WAIT_S = 0.25
POLICY_NAMES = ("off", "fixed:K", "threshold", "vllm", "sglang", "turbospec", "hf")

_BY_NAME: dict[str, type[Baseline]] = {
    policy.name: policy
    for policy in (ThresholdPolicy, TablePolicy, EmaPolicy, TurboSpecPolicy, HeuristicPolicy)
}
_FIXED = re.compile(r"fixed:([0-9]{1,6})")


def make_policy(name: str, max_k: int, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> Controller:
    """The policy of this name, one of POLICY_NAMES, with its published defaults.

    max_k: the largest K of any sequence. max_wait_s: how long a step may wait for proposals.
    `turbospec` is a `Seeded` controller, too; the others know no times.

    Raises ConfigError (field `policy`) for an unknown name, and for a K above `max_k`.
    """
    if name == "off":
        return FixedPolicy(0, max_k, max_wait_s)
    if name.startswith("fixed"):
        return FixedPolicy(_fixed_k(name, max_k), max_k, max_wait_s)
    if name not in _BY_NAME:
        raise ConfigError(
            f"policy: unknown policy {name!r}; allowed are {', '.join(POLICY_NAMES)}",
            field="policy",
        )
    return _BY_NAME[name](max_k, max_wait_s)


def _fixed_k(name: str, max_k: int) -> int:
    match = _FIXED.fullmatch(name)
    if match is None or int(match[1]) > max_k:
        raise ConfigError(
            f"policy: {name!r} is not allowed: fixed:K takes a whole K from 0 to {max_k}",
            field="policy",
        )
    return int(match[1])


__all__ = [
    "DEFAULT_MAX_WAIT_S",
    "POLICY_NAMES",
    "Baseline",
    "EmaPolicy",
    "FixedPolicy",
    "HeuristicPolicy",
    "TablePolicy",
    "ThresholdPolicy",
    "TurboSpecPolicy",
    "make_policy",
]
