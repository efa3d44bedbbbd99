"""How long the parts of noticing a lost rank take together."""

from __future__ import annotations

from specdec.model.parallel import REAP_S
from specdec.model.ranks import Deadlines


def test_a_lost_rank_is_told_within_the_promised_five_seconds():
    """A rank that is stopped answers no collective, and is then looked for among the dead; half a
    second is left to end the streams."""
    assert Deadlines().step_s + REAP_S <= 4.5
