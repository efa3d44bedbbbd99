"""Policies over one closed loop each: the same requests, seed and steps for all of them.

Runs a schedule of concurrencies and keeps what happened, whole and along the way. What the numbers
mean is `LoopResult`'s business; where requests and costs come from is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import groupby

from specdec.errors import ConfigError
from specdec.simulation.closed_loop import WARM_UP_STEPS, ClosedLoop, LoopResult
from specdec.simulation.costs import StepCost
from specdec.simulation.policies import PolicySetting, policy_setting
from specdec.simulation.requests import SimulatedRequest, endless

MAX_CONCURRENCY = 4096
TIMELINE_POINTS = 64
BASELINE = "off"


@dataclass(frozen=True, slots=True)
class ClosedScenario:
    """What all policies of a comparison share.

    concurrency: of each counted step, in order; warm-up runs at the first. Where it changes, the
    schedule is spread over the time that its steps take without speculation: all policies meet the
    same load at the same time, not in the same step, since load does not wait for their steps.
    """

    requests: SequenceOf[SimulatedRequest]
    drafters: tuple[str, ...]
    cost: StepCost
    concurrency: SequenceOf[int]
    seed: int
    max_k: int


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy's counted steps: `total`, and `parts`, consecutive stretches of one concurrency,
    as pairs (concurrency, result)."""

    setting: PolicySetting
    total: LoopResult
    parts: SequenceOf[tuple[int, LoopResult]]
    speedup_vs_off: float


def constant(concurrency: int, num_steps: int) -> list[int]:
    """The same concurrency for `num_steps` steps."""
    return [concurrency] * num_steps


def ramp(corners: SequenceOf[int], num_steps: int) -> list[int]:
    """Concurrency that passes through `corners` at even distances of steps, and between two of them
    takes equally many steps of `off` for each doubling. Raises ConfigError (field `ramp`)."""
    if len(corners) < 2 or any(not 1 <= corner <= MAX_CONCURRENCY for corner in corners):
        raise ConfigError(
            f"ramp: takes two or more concurrencies of 1 to {MAX_CONCURRENCY}, such as 1:256:1, "
            f"not {':'.join(map(str, corners))}",
            field="ramp",
        )
    steps = []
    for step in range(num_steps):
        place = step * (len(corners) - 1) / max(num_steps - 1, 1)
        leg = min(int(place), len(corners) - 2)
        low, high = math.log(corners[leg]), math.log(corners[leg + 1])
        steps.append(round(math.exp(low + (place - leg) * (high - low))))
    return steps


def check_policies(scenario: ClosedScenario, policies: SequenceOf[str]) -> None:
    """Raise ConfigError (field `policy`, `max_k`) as `compare` would."""
    for name in policies:
        policy_setting(name, scenario.drafters, scenario.max_k)


def compare(
    scenario: ClosedScenario,
    policies: SequenceOf[str],
    on_done: Callable[[], None] = lambda: None,
) -> list[PolicyRun]:
    """Each policy, in order, beside `off`, which is run once. `on_done` is called after each run.

    Raises ConfigError (field `policy`, `max_k`) before anything is run.
    """
    settings = [policy_setting(name, scenario.drafters, scenario.max_k) for name in policies]
    off = policy_setting(BASELINE, scenario.drafters, scenario.max_k)
    in_steps = _run(scenario, off)
    is_level = len(set(scenario.concurrency)) == 1
    duration_s = _total(in_steps).seconds
    parts = {BASELINE: in_steps if is_level else _run_for(scenario, off, duration_s)}
    on_done()
    for setting in settings:
        if setting.name not in parts:
            parts[setting.name] = (
                _run(scenario, setting) if is_level else _run_for(scenario, setting, duration_s)
            )
            on_done()
    return [_policy_run(setting, parts) for setting in settings]


def _policy_run(
    setting: PolicySetting, parts: Mapping[str, SequenceOf[tuple[int, LoopResult]]]
) -> PolicyRun:
    mine, off = _total(parts[setting.name]), _total(parts[BASELINE])
    speedup = mine.goodput_tokens_per_s / off.goodput_tokens_per_s
    return PolicyRun(setting, mine, parts[setting.name], speedup)


def _total(parts: SequenceOf[tuple[int, LoopResult]]) -> LoopResult:
    total = LoopResult()
    for _, part in parts:
        total.add(part)
    return total


def _loop(scenario: ClosedScenario, setting: PolicySetting) -> ClosedLoop:
    """Warmed up."""
    loop = ClosedLoop(
        setting.controller(),
        scenario.cost,
        endless(scenario.requests, scenario.seed),
        setting.drafters,
        scenario.max_k,
    )
    loop.run(WARM_UP_STEPS, scenario.concurrency[0])
    return loop


def _run_for(
    scenario: ClosedScenario, setting: PolicySetting, duration_s: float
) -> list[tuple[int, LoopResult]]:
    """The schedule spread over `duration_s` seconds, however many steps that takes."""
    loop, levels = _loop(scenario, setting), scenario.concurrency
    parts: list[tuple[int, LoopResult]] = []
    elapsed_s = 0.0
    while elapsed_s < duration_s:
        level = levels[min(int(elapsed_s / duration_s * len(levels)), len(levels) - 1)]
        step = loop.run(1, level)
        elapsed_s += step.seconds
        if parts and parts[-1][0] == level:
            parts[-1][1].add(step)
        else:
            parts.append((level, step))
    return parts


def _run(scenario: ClosedScenario, setting: PolicySetting) -> list[tuple[int, LoopResult]]:
    loop = _loop(scenario, setting)
    longest = max(len(scenario.concurrency) // TIMELINE_POINTS, 1)
    return [
        (concurrency, loop.run(num_steps, concurrency))
        for concurrency, num_steps in _stretches(scenario.concurrency, longest)
    ]


def _stretches(concurrency: SequenceOf[int], longest: int) -> list[tuple[int, int]]:
    """(concurrency, steps), none longer than `longest`."""
    stretches = []
    for level, steps in groupby(concurrency):
        left = len(list(steps))
        while left:
            stretches.append((level, min(left, longest)))
            left -= stretches[-1][1]
    return stretches
