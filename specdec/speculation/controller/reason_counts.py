"""How often sequences got their K for which reason: a handful of words, for metrics.

`reasons.py` says the same of one sequence in a sentence; here it is counted in every step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.step import PlannedStep

Ints = NDArray[np.int64]

FIXED, NO_DRAFTER, NO_ROOM, PROBE = "fixed", "no_drafter", "no_room", "probe"
PHASES = ("calibrating", "baseline", "on", "off", "guard_off")
REASONS = (FIXED, NO_DRAFTER, NO_ROOM, PROBE, *PHASES)


class ReasonCounts:
    """Decode steps of sequences by reason: fixed by the request, no drafter, no room for a draft
    token, a probe, else what the controller was about (its phase)."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(REASONS, 0)

    def count(self, step: PlannedStep, ks: Ints, decided: Ints | None, phase: str) -> None:
        """`ks` [sequences] as planned; `decided`: before probes raised some, None where nothing
        was ranked."""
        free = ~step.is_fixed
        without = free & (step.drafter < 0)
        full = free & (step.drafter >= 0) & (step.max_k == 0)
        self.totals[FIXED] += int(step.is_fixed.sum())
        self.totals[NO_DRAFTER] += int(without.sum())
        self.totals[NO_ROOM] += int(full.sum())
        num_probes = int((ks > decided).sum()) if decided is not None else 0
        self.totals[PROBE] += num_probes
        num_rest = step.num_decodes - int((step.is_fixed | without | full).sum()) - num_probes
        if num_rest > 0:
            self.totals[phase] += num_rest
