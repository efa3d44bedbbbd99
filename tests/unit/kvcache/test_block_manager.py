"""Block manager: allocation, sharing, eviction, truncation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.kvcache.block_manager import BlockManager

tokens_strategy = st.lists(st.integers(0, 1), min_size=1, max_size=14)
partition_strategy = st.sampled_from(["", "tenant"])


def filled(manager: BlockManager, token_ids: list[int], partition: str = "") -> list[int]:
    """A table whose tokens are all computed and registered."""
    table, _ = manager.acquire_prefix(token_ids, partition)
    assert manager.ensure_capacity(table, len(token_ids))
    manager.register_full_blocks(table, token_ids, len(token_ids), partition)
    return table


def cached_tokens(manager: BlockManager, token_ids: list[int], partition: str = "") -> int:
    """How much of a prompt the cache knows; the look-up touches what it finds."""
    table, num_cached = manager.acquire_prefix(token_ids, partition)
    manager.release(table)
    return num_cached


# -- allocation ------------------------------------------------------------------------------------


def test_growth_takes_only_missing_blocks_and_is_all_or_nothing():
    manager = BlockManager(4, 16, True)
    table: list[int] = []
    assert manager.ensure_capacity(table, 17)
    assert len(table) == 2
    assert manager.ensure_capacity(table, 32)
    assert len(table) == 2
    before = list(table)
    assert not manager.ensure_capacity(table, 16 * 4 + 1)
    assert table == before
    assert manager.num_free_blocks == 2
    assert manager.ensure_capacity(table, 16 * 4)
    assert sorted(table) == [0, 1, 2, 3]
    assert manager.usage == 1.0
    manager.check_integrity([table])


def test_release_empties_the_table():
    manager = BlockManager(4, 4, False)
    table: list[int] = []
    manager.ensure_capacity(table, 16)
    manager.release(table)
    assert table == []
    assert manager.num_free_blocks == 4
    manager.release(table)
    manager.check_integrity([])


def test_truncation_keeps_the_block_that_is_partly_needed():
    manager = BlockManager(4, 4, True)
    table: list[int] = []
    manager.ensure_capacity(table, 16)
    kept = table[:2]
    manager.truncate(table, 5)
    assert table == kept
    manager.truncate(table, 100)
    assert table == kept
    manager.truncate(table, 0)
    assert table == []
    manager.check_integrity([table])


def test_truncation_into_a_registered_block_is_refused():
    manager = BlockManager(4, 4, True)
    table = filled(manager, [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="block 0"):
        manager.truncate(table, 3)
    manager.truncate(table, 4)
    assert len(table) == 1
    manager.check_integrity([table])


def test_integrity_check_sees_a_table_that_it_was_not_told_of():
    manager = BlockManager(4, 4, True)
    table: list[int] = []
    manager.ensure_capacity(table, 8)
    with pytest.raises(AssertionError):
        manager.check_integrity([])
    with pytest.raises(AssertionError):
        manager.check_integrity([table, table])


def test_giving_a_block_back_twice_is_caught():
    manager = BlockManager(4, 4, True)
    table: list[int] = []
    manager.ensure_capacity(table, 4)
    copy = list(table)
    manager.release(table)
    with pytest.raises(AssertionError, match="twice"):
        manager.release(copy)


# -- sharing ---------------------------------------------------------------------------------------


def test_the_last_token_is_never_covered():
    manager = BlockManager(8, 4, True)
    prompt = list(range(8))
    first = filled(manager, prompt)
    second, num_cached = manager.acquire_prefix(prompt, "")
    assert num_cached == 4
    assert second == first[:1]
    third, num_cached = manager.acquire_prefix([*prompt, 99], "")
    assert num_cached == 8
    assert third == first
    manager.check_integrity([first, second, third])


@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_a_prompt_of_at_most_one_block_shares_nothing(num_tokens):
    manager = BlockManager(8, 4, True)
    filled(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert cached_tokens(manager, [1, 2, 3, 4][:num_tokens]) == 0


def test_equal_blocks_behind_different_prefixes_are_different():
    manager = BlockManager(8, 2, True)
    filled(manager, [1, 1, 5, 5, 7])
    assert cached_tokens(manager, [2, 2, 5, 5, 7]) == 0
    assert cached_tokens(manager, [5, 5, 7]) == 0
    assert cached_tokens(manager, [1, 1, 5, 6, 7]) == 2


def test_partitions_never_share():
    manager = BlockManager(16, 2, True)
    prompt = [1, 2, 3, 4, 5]
    filled(manager, prompt, "tenant-a")
    for other in ("tenant-b", "", "tenant-a\x00", "tenant-", "TENANT-A", "\ud800"):
        assert cached_tokens(manager, prompt, other) == 0
    assert cached_tokens(manager, prompt, "tenant-a") == 4


def test_token_ids_and_partition_cannot_be_shifted_into_each_other():
    manager = BlockManager(16, 1, True)
    filled(manager, [1, 0, 2], "p")
    filled(manager, [258, 3], "p")
    assert cached_tokens(manager, [1, 2, 9], "p") == 1
    assert cached_tokens(manager, [2, 1, 9], "p") == 0  # 258 = 0x0102


def test_only_verified_full_blocks_are_found():
    manager = BlockManager(8, 4, True)
    text = list(range(12))
    table: list[int] = []
    manager.ensure_capacity(table, 12)
    for num_verified, found in [(3, 0), (4, 4), (7, 4), (8, 8), (11, 8)]:
        manager.register_full_blocks(table, text, num_verified, "")
        assert cached_tokens(manager, [*text, 99]) == found


def test_two_that_computed_the_same_keep_their_own_blocks():
    manager = BlockManager(8, 4, True)
    text = list(range(9))
    tables: list[list[int]] = [[], []]
    for table in tables:
        manager.ensure_capacity(table, 9)
    for table in tables:
        manager.register_full_blocks(table, text, 8, "")
    shared, num_cached = manager.acquire_prefix(text, "")
    assert num_cached == 8
    assert shared == tables[0][:2]
    manager.check_integrity([*tables, shared])
    manager.release(tables[1])
    assert manager.num_cached_blocks == 0  # a second copy is not worth keeping
    manager.release(tables[0])
    assert manager.num_cached_blocks == 0  # still used through `shared`
    manager.release(shared)
    assert manager.num_cached_blocks == 2
    manager.check_integrity([])


def test_a_copy_goes_on_where_the_shared_one_stopped():
    manager = BlockManager(8, 2, True)
    tables: list[list[int]] = [[], []]
    for table in tables:
        manager.ensure_capacity(table, 4)
        manager.register_full_blocks(table, [1, 2, 3, 4], 2, "")
    manager.register_full_blocks(tables[1], [1, 2, 3, 4], 4, "")
    shared, num_cached = manager.acquire_prefix([1, 2, 3, 4, 5], "")
    assert num_cached == 4
    assert shared == [tables[0][0], tables[1][1]]
    manager.check_integrity([*tables, shared])


def test_without_prefix_caching_nothing_is_kept():
    manager = BlockManager(8, 2, False)
    table = filled(manager, [1, 2, 3, 4, 5])
    assert cached_tokens(manager, [1, 2, 3, 4, 5]) == 0
    manager.release(table)
    assert manager.num_cached_blocks == 0
    assert manager.hash_blocks([1, 2, 3, 4], "") == []


def test_kept_hashes_find_the_same_blocks():
    manager = BlockManager(8, 2, True)
    prompt = [1, 2, 3, 4, 5, 6]
    table = filled(manager, prompt)
    hashes = manager.hash_blocks(prompt, "")
    assert len(hashes) == 3
    assert manager.acquire_prefix(prompt, "", hashes) == (table[:2], 4)


# -- eviction --------------------------------------------------------------------------------------


def test_empty_blocks_go_before_cached_ones():
    manager = BlockManager(4, 2, True)
    table = filled(manager, [1, 2, 3, 4])
    manager.release(table)
    manager.ensure_capacity(table, 4)
    assert cached_tokens(manager, [1, 2, 3, 4, 5]) == 4


def test_the_tail_is_evicted_before_its_prefix():
    manager = BlockManager(3, 2, True)
    text = [1, 2, 3, 4, 5, 6]
    manager.release(filled(manager, text))
    taken: list[int] = []
    for left in (4, 2, 0):
        manager.ensure_capacity(taken, 2 * (len(taken) + 1))
        assert cached_tokens(manager, [*text, 7]) == left
    manager.check_integrity([taken])


def test_the_least_recently_used_is_evicted_first():
    manager = BlockManager(6, 2, True)
    old, new = [1, 2, 3, 4, 9], [5, 6, 7, 8, 9]
    for text in (old, new):
        manager.release(filled(manager, text[:4]))
    assert cached_tokens(manager, old) == 4  # touches it: now `new` is the older
    taken: list[int] = []
    manager.ensure_capacity(taken, 2 * 3)  # two empty blocks and one eviction
    assert cached_tokens(manager, new) == 2
    assert cached_tokens(manager, old) == 4


def test_a_shared_block_stays_while_anyone_uses_it():
    manager = BlockManager(4, 2, True)
    first = filled(manager, [1, 2, 3])
    second, _ = manager.acquire_prefix([1, 2, 3], "")
    manager.release(first)
    taken: list[int] = []
    assert manager.ensure_capacity(taken, 6)
    assert not manager.ensure_capacity(taken, 8)
    assert second[0] not in taken
    manager.check_integrity([second, taken])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(tokens_strategy, partition_strategy), max_size=6),
    tokens_strategy,
    partition_strategy,
)
def test_in_an_ample_pool_the_longest_known_prefix_is_found(size, history, prompt, partition):
    manager = BlockManager(200, size, True)
    for token_ids, owner in history:
        manager.release(filled(manager, token_ids, owner))
    expected = 0
    for length in range(size, len(prompt), size):
        if any(
            owner == partition and len(text) >= length and text[:length] == prompt[:length]
            for text, owner in history
        ):
            expected = length
    assert cached_tokens(manager, prompt, partition) == expected
