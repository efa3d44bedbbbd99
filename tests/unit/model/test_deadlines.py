"""How long the parts of noticing a lost rank take together."""

from __future__ import annotations

from specdec.model.parallel import REAP_S
from specdec.model.ranks import Deadlines
from specdec.model.standstill import LOOK_S, MAX_LOOKS


def test_a_lost_rank_is_told_within_the_promised_five_seconds():
    """A stopped rank is ended once it was seen so often, its peers then hear of it with their next
    plan and look for it among the dead; half a second is left to end the streams."""
    assert LOOK_S * (MAX_LOOKS + 1) + Deadlines().idle_plan_s + REAP_S <= 4.5


def test_a_rank_that_a_busy_machine_lets_wait_is_not_lost():
    """A share of a fortieth turns a second of work into forty."""
    assert min(Deadlines().step_s, Deadlines().plan_s) >= 40
