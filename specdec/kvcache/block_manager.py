"""Which KV block belongs to whom: allocation, prefix sharing, eviction.

Works on block ids and token ids only; the memory behind a block is `kv_pool.py`'s matter. A block
table is a plain list of block ids owned by its sequence and changed here in place. A full block
of verified tokens is found again by the hash of everything before and in it, so that equal
prefixes share blocks; a free block keeps its content until it is needed for something else.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

_DIGEST_BYTES = 32


class BlockManager:
    """A pool of `num_blocks` KV blocks of `block_size` tokens.

    A block is used (in at least one table), empty (free, nothing to find in it) or cached (free,
    but still found by its hash). Empty blocks are handed out first, then cached ones, least
    recently used first.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"need at least one block and token, got {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._num_references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 is taken first
        self._cached: dict[int, None] = {}  # an ordered set, least recently used first

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation may take, those with cached content included."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks whose content can still be shared."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Used share of the pool, 0 to 1."""
        return self.num_used_blocks / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def hash_blocks(self, token_ids: Sequence[int], partition: str) -> list[bytes]:
        """One hash for each full block of `token_ids`, each over all tokens up to its end; none
        where prefix caching is off."""
        if not self._enable_prefix_caching:
            return []
        hashes = []
        parent = _root_hash(partition)
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = _chain(parent, token_ids[start : start + self.block_size])
            hashes.append(parent)
        return hashes

    def acquire_prefix(
        self, token_ids: Sequence[int], partition: str, hashes: Sequence[bytes] | None = None
    ) -> tuple[list[int], int]:
        """Share the longest known prefix of `token_ids`: (block_table, num_cached_tokens).

        Never covers the last token: it must be computed, for its logits give the next one.
        `hashes`: what `hash_blocks` said of the same tokens, where the caller has kept it.
        The caller owns the table and gives it back through `release`.
        """
        if hashes is None:
            hashes = self.hash_blocks(token_ids, partition)
        block_table: list[int] = []
        for block_hash in islice(hashes, max(0, len(token_ids) - 1) // self.block_size):
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            self._cached.pop(block, None)
            self._num_references[block] += 1
            block_table.append(block)
        return block_table, len(block_table) * self.block_size

    def ensure_capacity(self, block_table: list[int], num_tokens: int) -> bool:
        """Grow the table in place until it holds `num_tokens` tokens; or False and no change."""
        num_missing = self.blocks_for(num_tokens) - len(block_table)
        if num_missing > self.num_free_blocks:
            return False
        for _ in range(num_missing):
            block_table.append(self._take_free_block())
        return True

    def truncate(self, block_table: list[int], num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens, the last one first.

        ValueError if the cut falls inside a registered block: writing other tokens into it would
        change the text of whoever shares it.
        """
        self._refuse_cut_in_verified_block(block_table, num_tokens)
        num_kept = self.blocks_for(num_tokens)
        while len(block_table) > num_kept:
            self._drop_reference(block_table.pop())

    def register_full_blocks(
        self,
        block_table: Sequence[int],
        token_ids: Sequence[int],
        num_verified_computed_tokens: int,
        partition: str,
    ) -> None:
        """Let others find the full blocks among the first `num_verified_computed_tokens`.

        The count must leave out draft tokens that are not verified. Cost: the blocks that became
        full since the last call. Where another block holds the same content already, that one
        stays the shared one.
        """
        if not self._enable_prefix_caching:
            return
        num_full = num_verified_computed_tokens // self.block_size
        first = num_full
        while first > 0 and self._hashes[block_table[first - 1]] is None:
            first -= 1
        parent = self._hashes[block_table[first - 1]] if first else _root_hash(partition)
        for index in range(first, num_full):
            assert parent is not None
            start = index * self.block_size
            parent = _chain(parent, token_ids[start : start + self.block_size])
            self._hashes[block_table[index]] = parent
            self._block_of_hash.setdefault(parent, block_table[index])

    def release(self, block_table: list[int]) -> None:
        """Give the whole table back and empty it. The tail goes first, so that it is evicted
        first: a prefix without its tail is of use, a tail without its prefix is not."""
        while block_table:
            self._drop_reference(block_table.pop())

    def discard(self, block_table: list[int]) -> None:
        """As `release`, for contents that are not to be trusted: no later request finds a block of
        the table that nobody else holds."""
        for block in block_table:
            if self._num_references[block] == 1 and self._is_findable(block):
                self._forget(block)
        self.release(block_table)

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """AssertionError unless the books agree with `block_tables`, all the tables there are."""
        tables = list(block_tables)
        counts = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            assert self._num_references[block] == counts[block], f"references of block {block}"
        free = [*self._empty, *self._cached]
        assert len(free) == len(set(free)), "a block is free twice"
        assert set(free) == {b for b in range(self.num_blocks) if not counts[b]}, "free blocks"
        assert self.num_free_blocks + self.num_used_blocks == self.num_blocks
        self._check_hashes()
        self._check_sharing(tables, counts)

    def _check_hashes(self) -> None:
        for block_hash, block in self._block_of_hash.items():
            assert self._hashes[block] == block_hash, f"hash of block {block}"
        for block in self._empty:
            assert self._hashes[block] is None, f"empty block {block} has a hash"
        for block in self._cached:
            assert self._is_findable(block), f"cached block {block} cannot be found"

    def _check_sharing(self, tables: list[Sequence[int]], counts: Counter[int]) -> None:
        index_of: dict[int, int] = {}
        for table in tables:
            assert len(table) == len(set(table)), "a table holds a block twice"
            for index, block in enumerate(table):
                assert index_of.setdefault(block, index) == index, f"block {block} at two places"
                assert counts[block] == 1 or self._is_findable(block), f"block {block} is shared"

    def _is_findable(self, block: int) -> bool:
        block_hash = self._hashes[block]
        return block_hash is not None and self._block_of_hash.get(block_hash) == block

    def _take_free_block(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block = next(iter(self._cached))
            del self._cached[block]
            self._forget(block)
        self._num_references[block] = 1
        return block

    def _drop_reference(self, block: int) -> None:
        self._num_references[block] -= 1
        assert self._num_references[block] >= 0, f"block {block} was given back twice"
        if self._num_references[block]:
            return
        if self._is_findable(block):
            self._cached[block] = None
        else:
            self._hashes[block] = None
            self._empty.append(block)

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        assert block_hash is not None
        del self._block_of_hash[block_hash]
        self._hashes[block] = None

    def _refuse_cut_in_verified_block(self, block_table: Sequence[int], num_tokens: int) -> None:
        index = num_tokens // self.block_size
        if num_tokens % self.block_size == 0 or index >= len(block_table):
            return
        if self._hashes[block_table[index]] is not None:
            raise ValueError(f"cannot cut to {num_tokens} tokens: block {index} is registered")


def _root_hash(partition: str) -> bytes:
    """Where the chain of a partition starts. Collision resistance keeps tenants apart."""
    # A cache_salt may hold any JSON string, lone surrogates included.
    data = partition.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, person=b"partition").digest()


def _chain(parent: bytes, token_ids: Sequence[int]) -> bytes:
    data = parent + array("q", token_ids).tobytes()
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, person=b"block").digest()
