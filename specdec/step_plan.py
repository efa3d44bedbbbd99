"""What every tensor-parallel rank executes in one step: flat lists of integers, no tensors.

Built by the scheduler on rank 0, sent to the other ranks as it is, turned into tensors by the
model runner of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepPlan:
    """One forward pass over the concatenated query tokens of all scheduled sequences.

    token_ids, positions, slot_mapping: one entry per query token, length num_tokens.
        A slot is block_id * block_size + offset in the KV pool.
    query_lens, context_lens, block_tables: one entry per sequence. A context length counts the
        keys after this pass, the query tokens included.
    logit_rows: indices into the query tokens whose logits rank 0 needs, ascending.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def add(
        self,
        token_ids: list[int],
        num_computed_tokens: int,
        block_table: list[int],
        block_size: int,
        num_logit_rows: int,
    ) -> None:
        """Append one sequence: `token_ids` follow `num_computed_tokens` cached ones, and logits
        are wanted for the last `num_logit_rows` of them."""
        num_query = len(token_ids)
        end = num_computed_tokens + num_query
        assert 0 <= num_logit_rows <= num_query
        assert len(block_table) * block_size >= end, "block table shorter than the context"
        first_row = self.num_tokens + num_query - num_logit_rows
        self.token_ids.extend(token_ids)
        for position in range(num_computed_tokens, end):
            self.positions.append(position)
            self.slot_mapping.append(
                block_table[position // block_size] * block_size + position % block_size
            )
        self.query_lens.append(num_query)
        self.context_lens.append(end)
        self.block_tables.append(block_table[: -(-end // block_size)])
        self.logit_rows.extend(range(first_row, first_row + num_logit_rows))
