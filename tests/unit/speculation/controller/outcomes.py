"""What a draft meets where each position is accepted by chance."""

from __future__ import annotations

import numpy as np


def draw(draws: np.random.Generator, acceptance: list[float]) -> int:
    """Accepted draft tokens of one proposal; `acceptance` is that of each position."""
    misses = np.flatnonzero(draws.random(len(acceptance)) >= acceptance)
    return int(misses[0]) if len(misses) else len(acceptance)
