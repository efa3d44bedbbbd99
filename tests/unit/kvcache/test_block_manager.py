"""Block manager: sharing, eviction, truncation, checked against an imitation of the KV memory.

A key or value at a position depends on every token up to it. So the imitation stores in each slot
exactly that, (partition, all tokens up to here), and any wrong sharing, early reuse or leaked
draft token shows as a slot that holds something else than its sequence needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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


# -- everything together ---------------------------------------------------------------------------


@dataclass
class Text:
    """What the test believes of one sequence."""

    token_ids: list[int]
    partition: str
    table: list[int]
    num_computed: int

    def needed(self, position: int) -> tuple[str, tuple[int, ...]]:
        return self.partition, tuple(self.token_ids[: position + 1])


class BlockManagerMachine(RuleBasedStateMachine):
    """Sequences that open, prefill, speculate and end in any order over a small pool."""

    @initialize(num_blocks=st.integers(1, 9), size=st.integers(1, 4), caching=st.booleans())
    def start(self, num_blocks: int, size: int, caching: bool) -> None:
        self.manager = BlockManager(num_blocks, size, caching)
        self.size = size
        self.caching = caching
        self.texts: list[Text] = []
        self.memory: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    def num_used(self) -> int:
        return len({block for text in self.texts for block in text.table})

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Grow a table and check the answer against a count of our own."""
        missing = max(0, -(-num_tokens // self.size) - len(table))
        own = {block for text in self.texts for block in text.table} | set(table)
        before = list(table)
        grown = self.manager.ensure_capacity(table, num_tokens)
        assert grown == (missing <= self.manager.num_blocks - len(own))
        assert table[: len(before)] == before
        assert len(table) == len(before) + (missing if grown else 0)
        return grown

    def write(self, text: Text, token_ids: list[int], start: int, end: int) -> None:
        for position in range(start, end):
            slot = (text.table[position // self.size], position % self.size)
            self.memory[slot] = (text.partition, tuple(token_ids[: position + 1]))

    def register(self, text: Text) -> None:
        self.manager.register_full_blocks(
            text.table, text.token_ids, text.num_computed, text.partition
        )

    @rule(token_ids=tokens_strategy, partition=partition_strategy)
    def open(self, token_ids: list[int], partition: str) -> None:
        table, num_cached = self.manager.acquire_prefix(token_ids, partition)
        assert num_cached == len(table) * self.size
        assert num_cached < len(token_ids)
        assert self.caching or num_cached == 0
        if self.grow(table, len(token_ids)):
            self.texts.append(Text(token_ids, partition, table, num_cached))
        else:
            self.manager.release(table)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def prefill(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.texts))
        end = data.draw(st.integers(text.num_computed, len(text.token_ids)))
        if not self.grow(text.table, end):
            return
        self.write(text, text.token_ids, text.num_computed, end)
        text.num_computed = end
        self.register(text)

    @precondition(lambda self: any(len(t.token_ids) - t.num_computed == 1 for t in self.texts))
    @rule(data=st.data(), draft=st.lists(st.integers(0, 1), max_size=6), token_id=st.integers(0, 1))
    def verify(self, data: st.DataObject, draft: list[int], token_id: int) -> None:
        ready = [t for t in self.texts if len(t.token_ids) - t.num_computed == 1]
        text = data.draw(st.sampled_from(ready))
        num_accepted = data.draw(st.integers(0, len(draft)))
        if not self.grow(text.table, len(text.token_ids) + len(draft)):
            return
        guessed = text.token_ids + draft
        self.write(text, guessed, text.num_computed, len(guessed))
        text.num_computed += 1 + num_accepted
        text.token_ids = [*text.token_ids, *draft[:num_accepted], token_id]
        self.register(text)
        self.manager.truncate(text.table, text.num_computed)
        assert len(text.table) == -(-text.num_computed // self.size)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        text = self.texts.pop(data.draw(st.integers(0, len(self.texts) - 1)))
        self.manager.release(text.table)
        assert text.table == []

    @invariant()
    def books_agree(self) -> None:
        self.manager.check_integrity([text.table for text in self.texts])
        assert self.manager.num_used_blocks == self.num_used()
        assert self.manager.num_free_blocks == self.manager.num_blocks - self.num_used()

    @invariant()
    def every_computed_token_is_intact(self) -> None:
        for text in self.texts:
            for position in range(text.num_computed):
                slot = (text.table[position // self.size], position % self.size)
                assert self.memory[slot] == text.needed(position)

    @invariant()
    def a_block_has_one_writer(self) -> None:
        """A slot that is still to be written belongs to one sequence only."""
        for text in self.texts:
            unwritten = set(text.table[text.num_computed // self.size :])
            for other in self.texts:
                assert other is text or not unwritten & set(other.table)


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
