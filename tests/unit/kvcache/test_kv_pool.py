"""The KV pool: rows land in their slots, blocks come back in order, and the size is set."""

from __future__ import annotations

import pytest
import torch

from specdec.config import CacheConfig
from specdec.errors import ConfigError
from specdec.kvcache.kv_pool import (
    DEFAULT_CPU_BYTES,
    KVLayerSpec,
    KVPool,
    bytes_per_block,
    num_blocks_for,
)

SPECS = [KVLayerSpec(2, 4, 3), KVLayerSpec(1, 4, 4)]


def make_pool() -> KVPool:
    return KVPool(SPECS, 5, 4, torch.float64, torch.device("cpu"))


def test_unwritten_slots_are_zero() -> None:
    assert all(bool((layer == 0).all()) for layer in make_pool().layers)


def test_blocks_are_gathered_in_the_order_asked() -> None:
    pool = make_pool()
    rows = torch.arange(3 * 14, dtype=torch.float64).view(3, 14)
    pool.write(0, torch.tensor([13, 4, 15]), rows)
    gathered = pool.gather(0, torch.tensor([3, 1]))
    assert gathered.shape == (8, 14)
    assert torch.equal(gathered[1], rows[0])
    assert torch.equal(gathered[3], rows[2])
    assert torch.equal(gathered[4], rows[1])
    assert float(gathered.abs().sum()) == float(rows.sum())
    assert float(pool.layers[1].abs().sum()) == 0


def test_paged_view_separates_keys_from_values() -> None:
    pool = make_pool()
    row = torch.arange(14, dtype=torch.float64)
    pool.write(0, torch.tensor([9]), row[None])
    keys, values = pool.paged_view(0)
    assert keys.shape == (5, 4, 2, 4)
    assert values.shape == (5, 4, 2, 3)
    assert torch.equal(keys[2, 1].flatten(), row[:8])
    assert torch.equal(values[2, 1].flatten(), row[8:])


def test_size_is_the_configured_one_or_what_fits() -> None:
    block = bytes_per_block(SPECS, 16, torch.float32)
    assert block == (2 * 7 + 8) * 16 * 4
    assert num_blocks_for(CacheConfig(num_blocks=7), block, 10**9) == 7
    assert num_blocks_for(CacheConfig(kv_cache_bytes=3 * block + 1), block, 10**9) == 3
    assert num_blocks_for(CacheConfig(), block, 9 * block) == 9
    assert num_blocks_for(CacheConfig(), block, None) == DEFAULT_CPU_BYTES // block


@pytest.mark.parametrize(
    ("cache", "free_bytes", "field"),
    [
        (CacheConfig(kv_cache_bytes=10), None, "kv_cache_bytes"),
        (CacheConfig(), 0, "gpu_memory_utilization"),
    ],
)
def test_too_little_memory_is_refused(
    cache: CacheConfig, free_bytes: int | None, field: str
) -> None:
    with pytest.raises(ConfigError, match="do not hold one block") as caught:
        num_blocks_for(cache, 1000, free_bytes)
    assert caught.value.field == field
