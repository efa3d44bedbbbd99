"""What a neighbour asks for keeps nobody from drafting: a K that a client fixed, requests without
drafts, prompts in every step. And what drafting costs beside them is seen."""

from __future__ import annotations

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import GoodputController
from tests.unit.speculation.controller.test_controller import controller
from tests.unit.speculation.controller.world import World, memory_bound

AUTO, NEIGHBOUR = 1, 2
CHUNK = 64


def world_beside(fixed_k: int, alpha: float = 0.8, **settings: object) -> World:
    """One sequence that is free beside one whose K is fixed."""
    alphas = {AUTO: alpha, NEIGHBOUR: 0.8}
    return World(controller(), alphas, fixed_k={NEIGHBOUR: fixed_k}, **settings)


def mean_k(world: World, first: int, end: int) -> float:
    return float(np.mean(world.ks[AUTO][first:end]))


def chunked(num_tokens: int, num_kv_tokens: int) -> float:
    """A target on which a chunk of a prompt takes as long as 60 tokens do."""
    return 0.060 * (1 + 0.01 * (num_tokens - 1)) + 1e-6 * num_kv_tokens


def best_k(world: World, fixed_k: int) -> int:
    """Of the free sequence, by counting: a neighbour whose K is fixed counts as one token."""

    def goodput(k: int) -> float:
        tokens = 1 + sum(world.alpha[AUTO] ** j for j in range(k + 1))
        seconds = world.run_s(2 + fixed_k + k, 2 * world.kv)
        return tokens / (seconds + world.propose_s(max(k, fixed_k), 0))

    return max(range(world.max_k + 1), key=goodput)


@pytest.mark.parametrize("fixed_k", [0, 1, 4])
def test_beside_a_fixed_k_one_drafts_what_is_best(fixed_k: int) -> None:
    world = world_beside(fixed_k)
    world.steps(300)
    assert set(world.ks[NEIGHBOUR]) == {fixed_k}
    assert mean_k(world, 5, 25) > 1, "from the start"
    assert mean_k(world, 50, 300) == pytest.approx(best_k(world, fixed_k), abs=0.5)


def test_prompts_in_every_step_do_not_end_drafting() -> None:
    world = World(controller(), {AUTO: 0.8, NEIGHBOUR: 0.8}, run_s=chunked)
    world.steps(5000, num_prefill_tokens=CHUNK)
    drafted = np.count_nonzero(np.array(world.ks[AUTO]).reshape(10, 500), axis=1)
    assert (drafted > 490).all(), drafted


def test_a_look_at_the_baseline_beside_prompts_is_one_step() -> None:
    """A step without a prompt is waited for, for so long as a look is due again."""
    world = World(controller(), {AUTO: 0.8}, run_s=chunked)
    looks = []
    for step in range(1500):
        world.step(num_prefill_tokens=CHUNK)
        if world.controller.snapshot()["phase"] == "baseline":
            looks.append(step)
    assert looks
    assert min(np.diff(looks), default=2) > 1


class Stalls:
    """Once the times are known, every tenth step with more tokens than `plain` takes two seconds
    longer: the estimates take that for twice what is usual, as they do with all that is wild."""

    def __init__(self, plain: int) -> None:
        self.plain, self.num = plain, 0

    def __call__(self, num_tokens: int, num_kv_tokens: int) -> float:
        drafts = num_tokens > self.plain
        self.num += drafts
        stalls = drafts and self.num > 200 and self.num % 10 == 0
        return memory_bound(num_tokens, num_kv_tokens) + (2.0 if stalls else 0.0)


@pytest.mark.parametrize(("fixed_k", "num_prefill_tokens"), [(1, 0), (0, 8), (1, 8)])
def test_the_guard_sees_what_drafts_cost_beside_others(
    fixed_k: int, num_prefill_tokens: int
) -> None:
    plain = num_prefill_tokens + 2 + fixed_k
    world = world_beside(fixed_k, run_s=Stalls(plain))
    world.steps(1500, num_prefill_tokens=num_prefill_tokens)
    assert float(world.controller.snapshot()["guard_trips"]) >= 2
    assert np.count_nonzero(world.ks[AUTO][-500:]) < 350
    assert set(world.ks[NEIGHBOUR]) == {fixed_k}


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("fixed_k", "num_prefill_tokens"), [(1, 0), (8, 0), (0, CHUNK), (4, CHUNK)]
)
def test_the_guard_does_not_blame_what_others_cost(
    noise: float, fixed_k: int, num_prefill_tokens: int
) -> None:
    """A fixed K of which little is accepted is its client's own business."""
    world = world_beside(fixed_k, run_s=chunked, noise=noise)
    world.alpha[NEIGHBOUR] = 0.1
    world.steps(600, num_prefill_tokens=num_prefill_tokens)
    assert world.controller.snapshot()["guard_trips"] == 0
    assert mean_k(world, 100, 600) > 1


def test_first_tokens_that_wait_for_a_fixed_k_do_not_end_the_drafts_of_others() -> None:
    """The neighbour's eight draft steps make a step more than twice as long; the free sequence
    adds 4 % to that."""
    world = world_beside(8, run_s=chunked)
    world.first_tokens_s = (0.5,)
    world.steps(600)
    assert world.controller.snapshot()["guard_trips_first_tokens_later"] == 0
    assert mean_k(world, 100, 600) > 1


@pytest.mark.parametrize("fixed_k", [1, 4])
def test_a_hung_drafter_of_a_fixed_k_costs_its_neighbours_what_its_tokens_are_worth(
    fixed_k: int,
) -> None:
    """And not `max_wait_ms` in each step: 64 rows, the drafts of one of them."""
    control = GoodputController(SpeculationConfig(max_wait_ms=2000.0))
    alphas = dict.fromkeys(range(64), 0.0)
    world = World(control, alphas, fixed_k={**dict.fromkeys(alphas, 0), 0: fixed_k})
    world.steps(50)
    world.propose_s = lambda depth, n: 10.0 if depth else 0.0
    waits = []
    for _ in range(100):
        world.step()
        waits.append(control.wait_s())
    plain_s = memory_bound(64, 64 * world.kv)
    usual_s = 0.002 + 0.009 * fixed_k
    assert max(waits) <= 2 * usual_s + fixed_k * plain_s / 64
    world.propose_s = lambda depth, n: usual_s if depth else 0.0
    drafted = world.committed
    world.steps(50)
    assert control.snapshot()["delivered_draft"] > 0.9, "it is heard as soon as it is back"
    assert world.committed > drafted


def test_a_drafter_that_never_answered_a_fixed_k_is_not_waited_for_in_full_for_ever() -> None:
    control = GoodputController(SpeculationConfig(max_wait_ms=2000.0))
    alphas = dict.fromkeys(range(64), 0.0)
    world = World(control, alphas, fixed_k={**dict.fromkeys(alphas, 0), 0: 2})
    world.propose_s = lambda depth, n: 10.0 if depth else 0.0
    world.steps(60)
    assert control.wait_s() < 0.2
