"""How long a depth is kept, by the sum of a geometric series."""

from __future__ import annotations

import math

import pytest

from specdec.speculation.controller.depth import DECAY, MAX_REGRET, DepthKeeper
from specdec.speculation.controller.policy import Decision


def decision(depth: int, regret: float) -> Decision:
    return Decision(
        ks=None,
        depth=depth,
        expected_tokens=1.0,
        goodput=1.0,
        baseline=1.0,
        shadow_price=0.1,
        offered_gain=1.0,
        regret=regret,
    )


def steps_kept(regret: float, most: int = 1000) -> int:
    """Steps in which a depth of 3 is kept while another one promises so much more."""
    keeper = DepthKeeper()
    assert keeper.kept() is None
    keeper.observe(decision(3, 0.0))
    for step in range(most):
        if keeper.kept() is None:
            return step
        assert keeper.kept() == 3
        keeper.observe(decision(3, regret))
    return most


@pytest.mark.parametrize("regret", [0.2, 0.05, 0.01, 0.005])
def test_a_better_depth_is_taken_when_what_was_given_up_adds_up(regret: float) -> None:
    """regret (1 - DECAY^n) / (1 - DECAY) >= MAX_REGRET, solved for n."""
    n = math.log(1 - MAX_REGRET * (1 - DECAY) / regret) / math.log(DECAY)
    assert steps_kept(regret) == math.ceil(n - 1e-9)


def test_noise_never_makes_a_change() -> None:
    assert steps_kept(0.99 * MAX_REGRET * (1 - DECAY)) == 1000


def test_nothing_drafted_keeps_no_depth() -> None:
    keeper = DepthKeeper()
    keeper.observe(decision(3, 0.0))
    keeper.observe(decision(0, 0.0))
    assert keeper.kept() is None
