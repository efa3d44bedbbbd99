"""The cells of figure 1 of arXiv 2601.11580, simulated.

The tokens per round of a curve are fitted on its first two batch sizes in closed form; the others
are predicted by running the batch, request for request, in the service simulation. Every policy
here is a fixed K, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.simulation.acceptance_process import DrafterLaw, WorkloadLaw, draw_requests
from specdec.simulation.costs import Calibrated
from specdec.simulation.policies import policy_setting
from specdec.simulation.reproduction.machines import machine
from specdec.simulation.reproduction.published import (
    BATCHES,
    LOOKUP_MATCHES,
    SPEEDUPS,
    Curve,
)
from specdec.simulation.reproduction.steady import NONE, Drafting, fit_tokens, step_time
from specdec.simulation.requests import SimulatedRequest
from specdec.simulation.service.admission import Limits
from specdec.simulation.service.fleet import Fleet, Service, Stretch
from specdec.simulation.workloads import WORKLOADS

NUM_FITTED = 2
NUM_REQUESTS = 400
LENGTH_SPREAD = 0.3
# The paper's engine neither runs out of KV nor holds drafting back for prompts.
LIMITS = Limits(max_num_sequences=1024, max_num_batched_tokens=16_384, kv_capacity_tokens=10**9)
WARM_UP_LIVES = 1.5
FULL_LIVES, LIVES_OF_ONE = 2.0, 48.0
BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class CurveRun:
    """A curve beside its simulation at BATCHES. The first NUM_FITTED were fitted."""

    curve: Curve
    tokens_per_round: float
    simulated: tuple[float, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Simulated over published, less one, at BATCHES."""
        pairs = zip(self.simulated, self.curve.speedups, strict=True)
        return tuple(simulated / published - 1 for simulated, published in pairs)

    @property
    def predicted_errors(self) -> tuple[float, ...]:
        return self.errors[NUM_FITTED:]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all batch sizes of a curve share. tokens: per round, as fitted."""

    curve: Curve
    machine: Calibrated
    drafting: Drafting
    tokens: float
    requests: SequenceOf[SimulatedRequest]


def setting_of(curve: Curve, tokens: float, seed: int) -> Setting:
    """The setting of a curve that gets so many tokens per round."""
    requests = alike_requests(curve, tokens, seed)
    of = machine(curve.model, curve.dataset)
    return Setting(curve, of, drafting_of(curve), tokens, requests)


class Bench:
    """Simulates batches, each model and data set without speculation once.

    lives: of a request, after a warm-up, for full batches; single sequences run longer.
    """

    def __init__(self, seed: int, lives: float = FULL_LIVES) -> None:
        self._seed = seed
        self._lives = lives
        self._off: dict[tuple[str, str, int], float] = {}

    def run(self, curve: Curve) -> CurveRun:
        """Fit, then simulate every batch size."""
        of, drafting = machine(curve.model, curve.dataset), drafting_of(curve)
        measured = dict(zip(BATCHES[:NUM_FITTED], curve.speedups, strict=False))
        tokens = fit_tokens(of, curve.dataset, drafting, measured)
        setting = setting_of(curve, tokens, self._seed)
        return CurveRun(curve, tokens, tuple(self.speedup(setting, each) for each in BATCHES))

    def speedup(self, setting: Setting, batch: int) -> float:
        """Goodput over that without speculation, which no drafter changes."""
        curve = setting.curve
        key = (curve.model, curve.dataset, batch)
        if key not in self._off:
            self._off[key] = self._goodput(setting, NONE, 1.0, batch)
        return self._goodput(setting, setting.drafting, setting.tokens, batch) / self._off[key]

    def _goodput(self, setting: Setting, drafting: Drafting, tokens: float, batch: int) -> float:
        """A closed loop of `batch` clients."""
        curve, of = setting.curve, setting.machine
        steps = WORKLOADS[curve.dataset].output_len / tokens
        life_s = steps * step_time(of, curve.dataset, batch, drafting, tokens).total_s
        lives = self._lives * max(LIVES_OF_ONE / FULL_LIVES / batch, 1.0)
        drafters = (curve.drafter,)
        service = Service(
            setting.requests,
            drafters,
            of,
            batch,
            max_k=curve.k,
            limits=LIMITS,
            max_undrafted_steps=0,
        )
        policy = policy_setting(f"fixed:{drafting.k}", drafters, curve.k)
        warm_up_s = WARM_UP_LIVES * life_s
        stretch = Stretch(-warm_up_s, warm_up_s, lives * life_s)
        return Fleet(service, policy, stretch, self._seed).run().goodput_tokens_per_s


def drafting_of(curve: Curve) -> Drafting:
    """Model drafters draft always, lookup where it finds a match."""
    share = LOOKUP_MATCHES[curve.dataset] if curve.drafter == "ngram" else 1.0
    return Drafting(curve.drafter, curve.k, share)


def alike_requests(curve: Curve, tokens: float, seed: int) -> tuple[SimulatedRequest, ...]:
    """Requests of a data set's lengths that get `tokens` per round at the curve's K: every draft
    token has the same chance, given all before, and lookup proposes in its share of positions."""
    drafting = drafting_of(curve)
    chance = even_acceptance((tokens - 1) / drafting.share, curve.k)
    of = WORKLOADS[curve.dataset]
    law = WorkloadLaw(
        of.prompt_len,
        LENGTH_SPREAD,
        of.output_len,
        LENGTH_SPREAD,
        {curve.drafter: DrafterLaw((1e9 * chance, 1e9 * (1 - chance)), (chance,))},
    )
    requests = draw_requests(law, (curve.drafter,), NUM_REQUESTS, seed)
    if drafting.share == 1.0:
        return requests
    random = np.random.default_rng(seed)
    return tuple(_with_gaps(request, curve, drafting.share, random) for request in requests)


def _with_gaps(
    request: SimulatedRequest, curve: Curve, share: float, random: np.random.Generator
) -> SimulatedRequest:
    has_match = random.random(request.output_len) < share
    acceptable = request.acceptable[curve.drafter] * has_match
    offered = {curve.drafter: has_match * curve.k}
    return SimulatedRequest(
        request.prompt_len, request.output_len, {curve.drafter: acceptable}, offered
    )


def even_acceptance(accepted: float, k: int) -> float:
    """The chance c with c + c^2 + ... + c^k = `accepted`, at most just below 1."""
    low, high = 0.0, 1.0 - 1e-6
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if sum(middle**position for position in range(1, k + 1)) < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def run_curves(
    seed: int, on_curve: Callable[[], None] = lambda: None, lives: float = FULL_LIVES
) -> list[CurveRun]:
    """All curves of figure 1."""
    bench = Bench(seed, lives)
    runs = []
    for curve in SPEEDUPS:
        runs.append(bench.run(curve))
        on_curve()
    return runs
