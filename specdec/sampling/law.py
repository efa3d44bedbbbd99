"""The sparse draft law: the distribution that a draft samples from, exactly as it is sent.

Weights are u16 and sum to 65535, ids ascend, and sampling is integer inverse CDF, so that draft
and target hold the same numbers (literature 3.3, 8.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOTAL_WEIGHT = 65535


@dataclass(slots=True)
class SparseLaw:
    """A distribution over a few token ids: `ids` u32 [n] ascending, `weights` u16 [n]."""

    ids: NDArray[np.uint32]
    weights: NDArray[np.uint16]
