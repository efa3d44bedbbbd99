"""How the controller follows sudden changes, and what a bad drafter or a wrong profile costs.

    python -m benchmarks.regimes [--seeds 40]

Virtual time, step times of Llama-3.1-8B with an EAGLE head (arXiv 2601.11580); about five minutes.
Acceptance of every draft token alone is drawn with a chance that changes while requests run. Prints

- recovery: steps from a change until expected goodput stays within 2 % of that of
  the right K; apart for falls, for the way back from k = 0, and for a step of the load;
- flapping: changes of K in 1000 steps where speculation is worth exactly what it costs, by
  sequences and noise of the times, and expected goodput there over that of the best K;
- guard: goodput over that without speculation in five minutes of virtual time, for a drafter of
  which nothing is accepted, and for starts from times that are three times too long or too short.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.measure import verdict
from specdec.config import SpeculationConfig
from specdec.simulation.closed_loop import ClosedLoop, LoopResult
from specdec.simulation.costs import Llama8B
from specdec.simulation.requests import SimulatedRequest
from specdec.speculation.controller import CostSeed, DraftPoint, GoodputController, ProfilePoint

DRAFTER, MAX_K, CONTEXT = "eagle", 16, 400
OUTPUT_LEN = 600
WINDOW, WITHIN = 20, 0.98
SETTLE, OBSERVED = 300, 200
GUARD_S = 300.0


class Regime:
    """Chance that a draft token is accepted, changed from outside; numbers drawn when asked."""

    def __init__(self, alpha: float, seed: int) -> None:
        self.alpha = alpha
        self._draws = np.random.default_rng(seed)

    def __getitem__(self, position: int) -> int:
        if self.alpha <= 0:
            return 0
        return min(int(self._draws.geometric(1 - self.alpha)) - 1, 64)

    def requests(self) -> Iterator[SimulatedRequest]:
        """Endless ones, all under this regime."""
        acceptable: Mapping[str, Regime] = {DRAFTER: self}
        while True:
            yield SimulatedRequest(CONTEXT, OUTPUT_LEN, acceptable)  # type: ignore[arg-type]


def loop_of(regime: Regime, controller: GoodputController | None = None) -> ClosedLoop:
    limits = SpeculationConfig(max_num_speculative_tokens=MAX_K)
    control = controller or GoodputController(limits)
    return ClosedLoop(control, Llama8B(), regime.requests(), (DRAFTER,), MAX_K)


def speed(alpha: float, ks: Mapping[int, int], batch: int, num_kv_tokens: float) -> float:
    """Expected tokens per second of steps in which this many sequences got each k (Leviathan's
    formula 1 on these times): what is drawn by chance has no part in it."""
    cost, steps = Llama8B(), sum(ks.values()) / batch
    tokens = sum(count * sum(alpha**j for j in range(k + 1)) for k, count in ks.items()) / steps
    drafted = sum(k * count for k, count in ks.items()) / steps
    seconds = cost.run_s(round(batch + drafted), round(num_kv_tokens))
    depth = max(ks)
    seconds += cost.propose_s({DRAFTER: (depth, round(drafted))}) if depth else 0.0
    return tokens / seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """What holds from a moment on."""

    alpha: float
    batch: int

    def best(self, num_kv_tokens: float) -> float:
        """Expected tokens per second at the best K of all."""
        return max(
            speed(self.alpha, {k: self.batch}, self.batch, num_kv_tokens) for k in range(MAX_K + 1)
        )


def recovery(before: Phase, after: Phase, seeds: int, first: Phase | None = None) -> int:
    """Steps after the change until, in the mean over seeds, expected goodput stays within 2 % of
    that of the right K, over every WINDOW steps.

    Runs settle for different times: the controller looks at k = 0 for one step in some hundreds,
    on a schedule that would else fall into the same window of all of them.
    """
    shares = np.zeros((seeds, OBSERVED))
    for seed in range(seeds):
        regime = Regime((first or before).alpha, seed)
        loop = loop_of(regime)
        if first:
            loop.run(SETTLE, first.batch)
        regime.alpha = before.alpha
        loop.run(SETTLE + seed * WINDOW, before.batch)
        regime.alpha = after.alpha
        for step in range(OBSERVED):
            result = loop.run(1, after.batch)
            kv = loop.num_kv_tokens
            reached = speed(after.alpha, result.steps_by_k, after.batch, kv)
            shares[seed, step] = reached / after.best(kv)
    windows = shares.mean(axis=0).reshape(-1, WINDOW).mean(axis=1)
    slow = np.flatnonzero(windows < WITHIN)
    return WINDOW * (int(slow[-1]) + 1 if len(slow) else 0)


class Noisy(Llama8B):
    """The same times, each longer by an exponential part of it."""

    def __init__(self, noise: float, seed: int) -> None:
        super().__init__()
        self._noise, self._draws = noise, np.random.default_rng(seed)

    def run_s(self, num_tokens: int, num_kv_tokens: int) -> float:
        return super().run_s(num_tokens, num_kv_tokens) * self._factor()

    def propose_s(self, asked: Mapping[str, tuple[int, int]]) -> float:
        return super().propose_s(asked) * self._factor()

    def _factor(self) -> float:
        return 1 + self._noise * float(self._draws.exponential())


@dataclass(frozen=True, slots=True)
class Flapping:
    """Of several seeds: changes of K in 1000 steps, in the mean and the most of one; expected
    goodput over that of the best K, in the mean over steps."""

    mean: float
    most: int
    share: float


def flapping(batch: int, noise: float, seeds: int) -> Flapping:
    """Where one draft token is worth just what it costs. Every change from one step to the next
    counts, also one that lasts a step."""
    cost = Llama8B()
    kv = batch * (CONTEXT + 500)
    drafted_s = cost.run_s(2 * batch, kv) + cost.propose_s({DRAFTER: (1, batch)})
    alpha = drafted_s / cost.run_s(batch, kv) - 1
    changes, shares = [], []
    for seed in range(seeds):
        controller = GoodputController(SpeculationConfig(max_num_speculative_tokens=MAX_K))
        requests = Regime(alpha, seed).requests()
        loop = ClosedLoop(controller, Noisy(noise, seed), requests, (DRAFTER,), MAX_K)
        loop.run(SETTLE, batch)
        depths = []
        for _ in range(1000):
            result = loop.run(1, batch)
            depths.append(controller.snapshot()["depth"])
            kv = loop.num_kv_tokens
            reached = speed(alpha, result.steps_by_k, batch, kv)
            shares.append(reached / Phase(alpha, batch).best(kv))
        changes.append(sum(a != b for a, b in pairwise(depths)))
    return Flapping(float(np.mean(changes)), max(changes), float(np.mean(shares)))


def against_off(regime: Regime, batch: int, controller: GoodputController | None = None) -> float:
    """Goodput in GUARD_S seconds over that of plain steps at the same KV lengths, start and all."""
    loop, result, plain_s = loop_of(regime, controller), LoopResult(), 0.0
    while loop.now_s < GUARD_S:
        kv, committed = loop.num_kv_tokens, result.num_committed
        loop.run(1, batch, result)
        plain_s += Llama8B().run_s(batch, kv) * (result.num_committed - committed) / batch
    return plain_s / result.seconds


def seeded(factor_run: float, factor_draft: float, batch: int) -> GoodputController:
    """A controller that starts from a profile whose times are wrong by these factors."""
    cost = Llama8B()
    kv = batch * CONTEXT
    counts = [round(2 ** (i / 8)) for i in range(8 * 12)]
    steps = [ProfilePoint(n, kv, factor_run * cost.run_s(n, kv)) for n in dict.fromkeys(counts)]
    rounds = [
        DraftPoint(batch, k, factor_draft * cost.propose_s({DRAFTER: (k, k * batch)}))
        for k in (1, 2, 4, 8, 16)
    ]
    controller = GoodputController(SpeculationConfig(max_num_speculative_tokens=MAX_K))
    controller.seed(CostSeed(steps=tuple(steps), drafts={DRAFTER: tuple(rounds)}))
    return controller


def print_recovery(seeds: int) -> None:
    print(f"steps until within 2 % of the right K's goodput, {seeds} seeds together")
    good, bad = 0.8, 0.1
    for batch in (4, 32):
        fall = recovery(Phase(good, batch), Phase(bad, batch), seeds)
        print(verdict(f"acceptance 0.8 -> 0.1, {batch} sequences", fall, 50, at_least=False))
        back = recovery(Phase(bad, batch), Phase(good, batch), seeds, Phase(good, batch))
        name = f"acceptance 0.1 -> 0.8 (back from k = 0), {batch} sequences"
        print(verdict(name, back, 50, at_least=False))
    for before, after in ((4, 128), (128, 4)):
        steps = recovery(Phase(0.6, before), Phase(0.6, after), seeds)
        print(verdict(f"load {before} -> {after} sequences", steps, 50, at_least=False))


def print_flapping(seeds: int) -> None:
    print("K changes in 1000 steps where drafting pays just what it costs: mean, most; goodput")
    for batch in (1, 2, 4, 8):
        for noise in (0.0, 0.05, 0.1, 0.2):
            flaps = flapping(batch, noise, max(seeds // 2, 1))
            name = f"{batch} sequences, noise {noise:.0%}"
            print(f"  {name:>24}: {flaps.mean:5.1f} {flaps.most:4d}  {flaps.share:.4f}", flush=True)


def print_guard(seeds: int) -> None:
    print("goodput over that without speculation, five minutes of virtual time")
    for batch in (1, 32):
        print(
            verdict(f"nothing accepted, {batch} sequences", against_off(Regime(0, 0), batch), 0.98)
        )
        for factor_run, factor_draft in ((3, 3), (1 / 3, 1 / 3), (1, 3), (1, 1 / 3), (3, 1)):
            control = seeded(factor_run, factor_draft, batch)
            name = f"step x{factor_run:.2g}, draft x{factor_draft:.2g}, {batch} sequences"
            print(verdict(name, against_off(Regime(0.3, 0), batch, control), 0.98))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40)
    arguments = parser.parse_args()
    parts: tuple[Callable[[int], None], ...] = (print_recovery, print_flapping, print_guard)
    for part in parts:
        part(arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
