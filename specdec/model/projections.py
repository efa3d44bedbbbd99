"""What an attention module computes around its attention: queries, keys and values, and what it
makes of the result.

Stands in for a step, so that a module and its replacement can be compared at any position without
a pool, and without attention's own arithmetic between what differs and what is seen.
"""

from __future__ import annotations

import torch

from specdec.model.attention_probe import LayerAttention
from specdec.model.step_context import Rotations


class ProjectionProbe:
    """Records the queries and the pool rows that each layer would write; every token then attends
    to itself alone.

    written: by layer, queries [T, heads, key_dim] and rows [T, row_size].
    """

    def __init__(self, layers: list[LayerAttention]) -> None:
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.rotation = Rotations().of
        self._layers = layers

    def record(self, layer: int, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Returns [T, heads * value_dim], each head with the value of its own token."""
        spec = self._layers[layer]
        self.written[layer] = query.clone(), rows.clone()
        values = rows[:, spec.kv.key_size :].view(len(rows), spec.kv.num_kv_heads, -1)
        shared = spec.num_heads // spec.kv.num_kv_heads
        return values.repeat_interleave(shared, dim=1).reshape(len(rows), -1)
