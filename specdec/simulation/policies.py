"""Policies by name, as simulations run them: the engine's own controller, baselines, the oracle.

`adaptive` is the class that the engine builds, not a copy. What a name means where two drafters are
available is decided here, once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdec.config import SpeculationConfig
from specdec.errors import ConfigError
from specdec.simulation.oracle import Oracle
from specdec.speculation.baselines import DEFAULT_MAX_WAIT_S, POLICY_NAMES, make_policy
from specdec.speculation.controller import Controller, GoodputController

SIMULATED_POLICIES = ("adaptive", *POLICY_NAMES, "fixed:DRAFTER:K", "oracle")
MAX_K_LIMIT = 128
LOCAL_DRAFTERS = ("ngram",)
_FIXED_DRAFTER = re.compile(r"fixed:([a-z][a-z0-9_-]*):([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A policy's name, and the drafters that sequences may use under it, the preferred one first.

    Policies that know one drafter only take the preferred one; `fixed:ngram:3` prefers `ngram`.
    """

    name: str
    drafters: tuple[str, ...]
    max_k: int

    def controller(self, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> Controller:
        """A new controller, which knows nothing yet.

        Raises ConfigError (field `policy`) for an unknown name, and for a K above `max_k`.
        """
        if self.name == "adaptive":
            limits = SpeculationConfig(
                max_num_speculative_tokens=self.max_k, max_wait_ms=1000 * max_wait_s
            )
            return GoodputController(limits)
        if self.name == "oracle":
            return Oracle(self.max_k, max_wait_s, self.drafters, LOCAL_DRAFTERS)
        match = _FIXED_DRAFTER.fullmatch(self.name)
        name = f"fixed:{match[2]}" if match else self.name
        return make_policy(name, self.max_k, max_wait_s)


def policy_setting(name: str, drafters: tuple[str, ...], max_k: int) -> PolicySetting:
    """The setting for a name of SIMULATED_POLICIES; `drafters`: all there are, by preference.

    Raises ConfigError (field `policy` or `max_k`) for what is not allowed.
    """
    if not 0 <= max_k <= MAX_K_LIMIT:
        raise ConfigError(f"max_k must be between 0 and {MAX_K_LIMIT}, not {max_k}", field="max_k")
    match = _FIXED_DRAFTER.fullmatch(name)
    if match is not None:
        if match[1] not in drafters:
            raise ConfigError(
                f"policy: {name!r} names a drafter that is not there: {', '.join(drafters)}",
                field="policy",
            )
        drafters = (match[1], *(other for other in drafters if other != match[1]))
    elif not _is_known(name):
        raise ConfigError(
            f"policy: unknown policy {name!r}; allowed are {', '.join(SIMULATED_POLICIES)}",
            field="policy",
        )
    setting = PolicySetting(name, drafters, max_k)
    setting.controller()
    return setting


def _is_known(name: str) -> bool:
    return name in SIMULATED_POLICIES or name.startswith("fixed:")
