"""Block manager: sharing, eviction, truncation, checked against an imitation of the KV memory.

A key or value at a position depends on every token up to it. So the imitation stores in each slot
exactly that, (partition, all tokens up to here), and any wrong sharing, early reuse or leaked
draft token shows as a slot that holds something else than its sequence needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdec.kvcache.block_manager import BlockManager

tokens_strategy = st.lists(st.integers(0, 1), min_size=1, max_size=14)
partition_strategy = st.sampled_from(["", "tenant"])


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
