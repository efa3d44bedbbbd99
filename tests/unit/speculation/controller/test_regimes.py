"""Times that change: acceptance, load, wrong costs and noise, in the simulated engine. Goodput is
the expected one of the ks that were chosen, so that luck in accepting does not blur it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import CostSeed, DraftPoint, GoodputController, ProfilePoint
from tests.unit.speculation.controller.world import World, draft_model

MAX_K = 8


def controller(seed: CostSeed | None = None) -> GoodputController:
    control = GoodputController(SpeculationConfig(max_num_speculative_tokens=MAX_K))
    if seed:
        control.seed(seed)
    return control


def target(num_tokens: int, num_kv_tokens: int) -> float:
    """60 ms for one token, 1 % more for each further one."""
    return 0.060 * (1 + 0.01 * (num_tokens - 1))


def world(batch: int, alpha: float, **settings: object) -> World:
    return World(controller(), dict.fromkeys(range(batch), alpha), run_s=target, **settings)


def set_acceptance(world: World, alpha: float) -> None:
    world.alpha = dict.fromkeys(world.alpha, alpha)


def share_of_best(world: World, first: int, end: int) -> float:
    """Expected tokens per second of these steps over those at the best K for all."""
    (alpha,) = set(world.alpha.values())
    ks = np.array([world.ks[seq_id][first:end] for seq_id in world.alpha]).T
    batch = ks.shape[1]

    def seconds(step: np.ndarray) -> float:
        num_drafted = int(step.sum())
        return world.run_s(batch + num_drafted, 0) + world.propose_s(int(step.max()), num_drafted)

    def tokens(step: np.ndarray) -> float:
        return float(((1 - alpha ** (step + 1)) / (1 - alpha)).sum())

    constant = [np.full(batch, k) for k in range(MAX_K + 1)]
    best = max(tokens(step) / seconds(step) for step in constant)
    return sum(map(tokens, ks)) / sum(map(seconds, ks)) / best


@pytest.mark.parametrize(("batch", "num_seeds"), [(4, 6), (32, 2)])
def test_acceptance_that_breaks_down_and_comes_back(batch: int, num_seeds: int) -> None:
    """0.8 -> 0.1 -> 0.8: within 2 % of the right K's goodput 50 steps after either change; on the
    way back it has been at k = 0 for a hundred steps, and knows the drafter by probes alone. In the
    mean over seeds: how soon probes succeed is a matter of luck."""
    down, back = [], []
    for seed in range(num_seeds):
        simulated = world(batch, 0.8, seed=seed)
        simulated.steps(100)
        set_acceptance(simulated, 0.1)
        simulated.steps(150)
        down.append(share_of_best(simulated, 150, 250))
        assert np.mean([ks[200:250] for ks in simulated.ks.values()]) < 0.2
        set_acceptance(simulated, 0.8)
        simulated.steps(100)
        back.append(share_of_best(simulated, 300, 350))
    assert np.mean(down) >= 0.98
    assert np.mean(back) >= 0.98


def test_a_load_step_switches_off_and_pays_for_few_probes() -> None:
    """4 -> 128 sequences of acceptance 0.8 on a target that is bound by arithmetic beyond 32
    tokens: k = 0 is right, and no probe may cost more than its share."""
    simulated = World(
        controller(),
        dict.fromkeys(range(4), 0.8),
        run_s=lambda n, kv: 0.02 + 0.0003 * max(0, n - 32),
    )
    simulated.steps(100)
    assert np.mean(simulated.ks[0][-50:]) >= 1
    for seq_id in range(4, 128):
        simulated.alpha[seq_id] = 0.8
        simulated.ks[seq_id] = [0] * 100
    simulated.steps(150)
    assert share_of_best(simulated, 150, 250) >= 0.98
    assert np.mean(simulated.ks[0][-50:]) < 0.1


@pytest.mark.parametrize(
    ("batch", "per_step_s", "most"), [(8, 0.0285, 10), (8, 0.0315, 10), (1, 0.0301, 100)]
)
def test_at_a_noisy_threshold_k_changes_seldom(batch: int, per_step_s: float, most: int) -> None:
    """Drafting costs about what it gives, and times are noisy by 10 %. In 1000 steps; of one
    sequence, whose outcomes alone are all that is seen, more often."""
    simulated = world(batch, 0.6, seed=1, noise=0.1)
    simulated.propose_s = lambda depth, n: (0.002 + per_step_s * depth) if depth else 0.0
    simulated.steps(200)
    depths = []
    for _ in range(1000):
        simulated.step()
        depths.append(float(simulated.controller.snapshot()["depth"]))
    assert np.count_nonzero(np.diff(depths)) <= most


# -- the guard: five minutes, steps of 0.12 s and more ---------------------------------------------

SLOWER = 2


def slow(num_tokens: int, num_kv_tokens: int) -> float:
    return SLOWER * target(num_tokens, num_kv_tokens)


def five_minutes(simulated: World) -> float:
    """Goodput over that without speculation."""
    while simulated.now_s < 300:
        simulated.step()
    batch = len(simulated.alpha)
    return simulated.speed * simulated.run_s(batch, 0) / batch


@pytest.mark.parametrize("batch", [1, 32])
def test_an_adversarial_drafter_costs_two_percent_at_most(batch: int) -> None:
    simulated = world(batch, 0.0)
    simulated.run_s, simulated.propose_s = slow, lambda d, n: SLOWER * draft_model(d, n)
    assert five_minutes(simulated) >= 0.98


@pytest.mark.parametrize(("batch", "wrong"), [(8, 1 / 3), (1, 3.0)])
def test_costs_that_are_wrong_by_three_times_cost_two_percent_at_most(
    batch: int, wrong: float
) -> None:
    """Of no speculation, where acceptance 0.3 pays nothing. The profile tells a third, or three
    times, of what the draft takes, and the inverse of what the target takes for a further token."""

    def propose_s(depth: int, num_draft_tokens: int) -> float:
        return 0.022 * SLOWER * depth

    def told_s(num_tokens: int) -> float:
        return slow(1, 0) + (slow(num_tokens, 0) - slow(1, 0)) * wrong

    seed = CostSeed(
        steps=tuple(ProfilePoint(n, 200 * batch, told_s(n)) for n in (1, 2, 4, 8, 16, 32, 64)),
        drafts={
            "draft": tuple(DraftPoint(k, batch, wrong * propose_s(k, 0)) for k in (1, 2, 4, 8))
        },
    )
    alpha = dict.fromkeys(range(batch), 0.3)
    simulated = World(controller(seed), alpha, run_s=slow, propose_s=propose_s)
    assert five_minutes(simulated) >= 0.98


# -- prefill beside decodes ------------------------------------------------------------------------


def with_arrivals(simulated: World, steps: int, num_prefill_tokens: int) -> int:
    """A prompt's chunk in every third step or so; how often the depth changed."""
    draws = np.random.default_rng(7)
    depths = []
    for arrives in draws.random(steps) < 0.35:
        simulated.step(num_prefill_tokens if arrives else 0)
        depths.append(float(simulated.controller.snapshot()["depth"]))
    return int(np.count_nonzero(np.diff(depths)))


def test_prefills_that_come_and_go_do_not_move_k() -> None:
    """Eight decodes all the time; chunks of 64 tokens take the step from 8 rows to 72. K is what
    eight decodes are worth, and stays."""
    alone, beside = world(8, 0.8, seed=3), world(8, 0.8, seed=3)
    alone.steps(150)
    with_arrivals(beside, 150, 64)
    changes = with_arrivals(beside, 300, 64)
    alone.steps(300)
    assert changes <= 3, "10 in 1000 steps"
    mean = [np.mean([ks[-300:] for ks in simulated.ks.values()]) for simulated in (alone, beside)]
    assert mean[0] > 1.5
    assert mean[1] == pytest.approx(mean[0], rel=0.15)


def test_prefills_beside_a_poor_drafter_cost_no_more_than_without_speculation() -> None:
    """Acceptance 0.05: within 2 % of the same steps with speculation off."""
    times: dict[str, float] = {}
    for name, max_k in (("adaptive", MAX_K), ("off", 0)):
        simulated = world(8, 0.05, seed=3, max_k=max_k)
        simulated.steps(60)
        simulated.reset_clock()
        with_arrivals(simulated, 400, 64)
        times[name] = simulated.speed_since
    assert times["adaptive"] >= 0.98 * times["off"]


def by_step(simulated: World, of: Callable[[list[int]], float]) -> list[float]:
    return [of(list(ks)) for ks in zip(*simulated.ks.values(), strict=True)]


def test_a_burst_of_prefill_leaves_no_more_than_one_probe_of_k_behind() -> None:
    """At k = 0 a step drafts for one sequence at most: what is off is not half on."""
    simulated = world(8, 0.05, seed=4)
    simulated.steps(60)
    with_arrivals(simulated, 150, 256)
    assert max(by_step(simulated, sum)[-150:]) <= 1
