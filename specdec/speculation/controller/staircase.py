"""The shape of step times: cells that end where tiles end, steps kept apart from slopes.

Pure functions over knots (amount of work, seconds); what was measured where is told to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

EXACT_BUCKETS = 32
BUCKETS_PER_OCTAVE = 8
# Two cells side by side are a step, and not a slope, where the time between them grows by this part
# and so many times as fast as before or after.
STEP_GROWTH = 0.03
STEP_STEEPNESS = 3.0


def bucket_of(x: float) -> int:
    """Every whole x up to 32, then eight per doubling that end where x is a multiple of their
    width: (288, 320] and (320, 352] between 256 and 512."""
    if x <= EXACT_BUCKETS:
        return round(x)
    octave = math.ceil(x - 1).bit_length() - 1
    width = (1 << octave) // BUCKETS_PER_OCTAVE
    first_octave = EXACT_BUCKETS.bit_length() - 1
    place = math.ceil(x / width) - BUCKETS_PER_OCTAVE
    return EXACT_BUCKETS + (octave - first_octave) * BUCKETS_PER_OCTAVE + place


def edge_between(low: float, high: float) -> int | None:
    """The last whole x of the cell of `low`, where the cell of `high` is the next one."""
    if low <= EXACT_BUCKETS or bucket_of(high) != bucket_of(low) + 1:
        return None
    width = (1 << (math.ceil(low - 1).bit_length() - 1)) // BUCKETS_PER_OCTAVE
    return math.ceil(low / width) * width


def with_edges(xs: list[float], seconds: list[float]) -> tuple[list[float], list[float]]:
    """The knots, and two more at the edge of two cells wherever the time jumps between them, so
    that a step stays a step. Slopes are left as they are."""
    new_x, new_s = xs[:1], seconds[:1]
    for i in range(1, len(xs)):
        edge = edge_between(xs[i - 1], xs[i]) if _is_step(xs, seconds, i) else None
        if edge is not None and xs[i - 1] < edge and edge + 1 < xs[i]:
            new_x += [edge, edge + 1]
            new_s += [seconds[i - 1], seconds[i]]
        new_x.append(xs[i])
        new_s.append(seconds[i])
    return new_x, new_s


def _is_step(xs: list[float], seconds: list[float], i: int) -> bool:
    """Whether the time grows much from knot i - 1 to i, and far faster than on both sides."""
    growth = seconds[i] - seconds[i - 1]
    if growth <= STEP_GROWTH * seconds[i - 1]:
        return False
    around = [
        (seconds[j] - seconds[j - 1]) / (xs[j] - xs[j - 1])
        for j in (i - 1, i + 1)
        if 0 < j < len(xs)
    ]
    return bool(around) and growth / (xs[i] - xs[i - 1]) > STEP_STEEPNESS * max(around)


def not_decreasing(seconds: SequenceOf[float], weights: SequenceOf[float]) -> list[float]:
    """Isotonic regression (pool adjacent violators): more work never takes less time, whatever
    the noise says. Otherwise draft tokens would look free whose cell had a lucky start."""
    pools: list[tuple[float, float, int]] = []  # seconds, weight, knots
    for value, own_weight in zip(seconds, weights, strict=True):
        weight, size = own_weight, 1
        while pools and pools[-1][0] > value:
            other_s, other_weight, other_size = pools.pop()
            if math.isinf(other_weight):
                value = other_s
            else:
                value = (weight * value + other_weight * other_s) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]
