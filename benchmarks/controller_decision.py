"""What a decision costs: microseconds of `plan` and `observe` by batch size and largest K.

    python -m benchmarks.controller_decision [--policy adaptive] [--steps 600]

No model runs. Sequences with different chances of acceptance decode in virtual time, on the step
times of Llama-3.1-8B on one H100 with an EAGLE draft, so that the controller sees what it would see
in service: it speculates, probes, looks at its baseline, and requests end and begin. All cases take
turns within each step, so that a busy machine slows all alike; CPU time is what a quiet one would
need.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.measure import machine, percentile, verdict
from specdec.config import SpeculationConfig
from specdec.speculation.baselines import POLICY_NAMES, make_policy
from specdec.speculation.controller import (
    BatchState,
    Controller,
    GoodputController,
    SequenceResult,
    SequenceState,
    StepResult,
)

BATCHES = (1, 32, 256)
LARGEST_KS = (8, 16)
WARM_UP_STEPS = 100
AIM_MS, AIM_BATCH, AIM_K = 0.5, 256, 8
MEAN_OUTPUT_TOKENS = 250

Result = TypeVar("Result")


@dataclass(slots=True)
class Times:
    """Microseconds of one method, by the wall clock and in CPU time of this thread."""

    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], Result]) -> Result:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        result = work()
        self.cpu_us.append((time.thread_time() - cpu_s) * 1e6)
        self.wall_us.append((time.perf_counter() - wall_s) * 1e6)
        return result

    def __str__(self) -> str:
        columns = [percentile(t, p) for t in (self.cpu_us, self.wall_us) for p in (50, 99)]
        return " ".join(f"{us:8.0f}" for us in columns)


class Case:
    """One controller and the batch that it decides for."""

    def __init__(self, controller: Controller, batch: int, max_k: int, seed: int) -> None:
        self.batch, self.max_k = batch, max_k
        self.plan, self.observe = Times(), Times()
        self._controller = controller
        self._random = random.Random(seed)
        self._next_id, self._now_s, self._num_drafted = 0, 0.0, 0
        self._sequences: dict[int, tuple[int, float]] = {}  # id -> context, acceptance

    def step(self) -> None:
        state = self._state()
        ks = self.plan.measure(lambda: self._controller.plan(state))
        self._num_drafted += sum(ks)
        result = self._execute(state, ks)
        self.observe.measure(lambda: self._controller.observe(result))

    def forget_times(self) -> None:
        self.plan, self.observe, self._num_drafted = Times(), Times(), 0

    @property
    def mean_k(self) -> float:
        return self._num_drafted / (self.batch * len(self.plan.wall_us))

    def _state(self) -> BatchState:
        while len(self._sequences) < self.batch:
            self._sequences[self._next_id] = (300, self._random.betavariate(7, 3))
            self._next_id += 1
        sequences = [
            SequenceState(seq_id, context, self.max_k, None, "draft")
            for seq_id, (context, _) in self._sequences.items()
        ]
        num_kv_tokens = sum(context for context, _ in self._sequences.values())
        return BatchState(sequences, 0, num_kv_tokens, self._now_s)

    def _execute(self, state: BatchState, ks: list[int]) -> StepResult:
        num_tokens, depth = self.batch + sum(ks), max(ks)
        run_s = (7.093 + 0.02101 * num_tokens + 3.926e-5 * state.num_kv_tokens) / 1e3
        propose_s = 0.712e-3 * depth
        run_s, propose_s = self._noisy(run_s), self._noisy(propose_s)
        self._now_s += run_s + propose_s
        return StepResult(
            num_tokens=num_tokens,
            num_prefill_tokens=0,
            num_kv_tokens=state.num_kv_tokens,
            propose_s=propose_s,
            run_s=run_s,
            step_s=run_s + propose_s,
            sequences=[self._outcome(seq_id, k) for seq_id, k in self._planned(state, ks)],
            now_s=self._now_s,
        )

    @staticmethod
    def _planned(state: BatchState, ks: list[int]) -> list[tuple[int, int]]:
        return [(s.seq_id, k) for s, k in zip(state.sequences, ks, strict=True)]

    def _noisy(self, seconds: float) -> float:
        return seconds * (1 + 0.02 * self._random.expovariate(1.0))

    def _outcome(self, seq_id: int, k: int) -> SequenceResult:
        context, acceptance = self._sequences[seq_id]
        accepted = 0
        while accepted < k and self._random.random() < acceptance:
            accepted += 1
        self._sequences[seq_id] = (context + accepted + 1, acceptance)
        finished = self._random.random() < (accepted + 1) / MEAN_OUTPUT_TOKENS
        if finished:
            del self._sequences[seq_id]
        return SequenceResult(seq_id, "draft", k, k, accepted, accepted + 1, finished)


def make_controller(name: str, max_k: int) -> Controller:
    if name == "adaptive":
        return GoodputController(SpeculationConfig(max_num_speculative_tokens=max_k))
    return make_policy(name, max_k)


def run(policy: str, num_steps: int, seed: int) -> list[Case]:
    """All cases, step by step in turn."""
    cases = [
        Case(make_controller(policy, max_k), batch, max_k, seed)
        for max_k in LARGEST_KS
        for batch in BATCHES
    ]
    for number in range(WARM_UP_STEPS + num_steps):
        for case in cases:
            if number == WARM_UP_STEPS:
                case.forget_times()
            case.step()
    return cases


def report(policy: str, cases: list[Case]) -> None:
    print(f"{policy}: microseconds by CPU time and by the wall clock")
    names = ("cpu p50", "cpu p99", "p50", "p99")
    header = " ".join(f"{name:>8}" for name in names)
    print(f"{'':>24} {'plan':^35}   {'observe':^35}")
    print(f"{'sequences':>9} {'max k':>6} {'mean k':>7} {header}   {header}")
    for case in cases:
        print(f"{case.batch:>9} {case.max_k:>6} {case.mean_k:>7.2f} {case.plan}   {case.observe}")
    aimed = next(case for case in cases if (case.batch, case.max_k) == (AIM_BATCH, AIM_K))
    what = f"plan, {AIM_BATCH} sequences, K up to {AIM_K}"
    for percent in (50, 99):
        cpu_ms = percentile(aimed.plan.cpu_us, percent) / 1e3
        print(verdict(f"{what}: ms of CPU time, p{percent}", cpu_ms, AIM_MS, at_least=False))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    allowed = ", ".join(("adaptive", *POLICY_NAMES))
    parser.add_argument("--policy", default="adaptive", help=allowed)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    report(arguments.policy, run(arguments.policy, arguments.steps, arguments.seed))


if __name__ == "__main__":
    main()
