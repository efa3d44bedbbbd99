"""A request as the simulator knows it: lengths, and what each drafter would get accepted where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """acceptable: drafter -> [output_len], how many draft tokens in a row would be accepted if it
    proposed at that output position. Policies never see it; verification reveals parts of it.
    offered: drafter -> [output_len], the most that it has to propose there, for drafters that at
    times have nothing, such as lookup without a match."""

    prompt_len: int
    output_len: int
    acceptable: Mapping[str, Ints]
    offered: Mapping[str, Ints] = field(default_factory=dict)


def endless(requests: SequenceOf[SimulatedRequest], seed: int) -> Iterator[SimulatedRequest]:
    """Every request once in seeded order, then all again in another order, without end."""
    random = np.random.default_rng(seed)
    while True:
        for index in random.permutation(len(requests)):
            yield requests[index]
