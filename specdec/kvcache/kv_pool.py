"""The paged KV pool: the memory behind block tables.

One tensor per attention layer; a slot (block_id * block_size + offset) is one row that holds the
keys, then the values, of one token. It knows nothing of sequences: who owns which block is the
block manager's business. The size is set once and never grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec.config import CacheConfig
from specdec.errors import ConfigError

DEFAULT_CPU_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class KVLayerSpec:
    """What one attention layer of this rank keeps per token. Keys and values may differ in size."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_size(self) -> int:
        return self.num_kv_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_kv_heads * self.value_dim

    @property
    def row_size(self) -> int:
        return self.key_size + self.value_size


class KVPool:
    """Keys and values of all layers, [num_blocks * block_size, row_size] each.

    Zeroed at start, and behind the text of each block that is begun: slots that were not written
    are read as padding, and masked zeros are harmless where masked garbage (NaN) would not be.
    """

    def __init__(
        self,
        specs: list[KVLayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.specs = specs
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = [
            torch.zeros(num_blocks * block_size, spec.row_size, dtype=dtype, device=device)
            for spec in specs
        ]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store rows [n, row_size] (keys of all heads, then values) at slots [n]."""
        self.layers[layer].index_copy_(0, slots, rows)

    def clear(self, slots: torch.Tensor) -> None:
        """Zero slots [n] in every layer: what is masked must be finite to be harmless."""
        for layer in self.layers:
            layer.index_fill_(0, slots, 0)

    def gather(self, layer: int, blocks: torch.Tensor) -> torch.Tensor:
        """Rows of whole blocks [n] in the order given: [n * block_size, row_size], contiguous."""
        pool = self.layers[layer]
        row_size = pool.shape[1]
        paged = pool.view(self.num_blocks, self.block_size * row_size)
        return paged.index_select(0, blocks).view(-1, row_size)

    def paged_view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as [num_blocks, block_size, heads, dim] views, for kernels that read
        through a block table themselves."""
        spec = self.specs[layer]
        paged = self.layers[layer].view(self.num_blocks, self.block_size, spec.row_size)
        keys, values = paged.split_with_sizes((spec.key_size, spec.value_size), -1)
        shape = (self.num_blocks, self.block_size, spec.num_kv_heads, -1)
        return keys.view(shape), values.view(shape)


def bytes_per_block(specs: list[KVLayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers of this rank."""
    return sum(spec.row_size for spec in specs) * block_size * dtype.itemsize


def num_blocks_for(cache: CacheConfig, block_bytes: int, free_bytes: int | None) -> int:
    """The pool's size in blocks: the configured number, else what fits into the bytes given.

    `free_bytes`: what a profile run left for the pool on a CUDA device, None on CPU.
    Raises ConfigError where not even one block fits.
    """
    if cache.num_blocks is not None:
        return cache.num_blocks
    field = "kv_cache_bytes" if cache.kv_cache_bytes is not None else "gpu_memory_utilization"
    left = DEFAULT_CPU_BYTES if free_bytes is None else free_bytes
    budget = left if cache.kv_cache_bytes is None else cache.kv_cache_bytes
    if budget < block_bytes:
        raise ConfigError(
            f"{budget} bytes for the KV cache do not hold one block of {block_bytes} bytes",
            field=field,
        )
    return budget // block_bytes
