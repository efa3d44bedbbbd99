"""Step plans as flat int32 arrays, the form in which rank 0 sends them to the other ranks.

Layout: three counts (tokens, sequences, logit rows), then the lists
of the plan in the order of its fields, the block tables as their lengths followed by their entries.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from specdec.step_plan import StepPlan

_NUM_COUNTS = 3


def encode_plan(plan: StepPlan) -> NDArray[np.int32]:
    """The plan as one array. Raises OverflowError for a number beyond 32 bits."""
    table_lens = [len(table) for table in plan.block_tables]
    counts = (plan.num_tokens, len(table_lens), len(plan.logit_rows))
    numbers = chain(
        counts,
        plan.token_ids,
        plan.positions,
        plan.slot_mapping,
        plan.query_lens,
        plan.context_lens,
        plan.logit_rows,
        table_lens,
        *plan.block_tables,
    )
    return np.array(list(numbers), dtype=np.int32)


def decode_plan(numbers: NDArray[np.int32]) -> StepPlan:
    """The inverse of `encode_plan`."""
    num_tokens, num_sequences, num_rows = numbers[:_NUM_COUNTS].tolist()
    flat = numbers[_NUM_COUNTS:].tolist()
    lengths = (num_tokens,) * 3 + (num_sequences,) * 2 + (num_rows, num_sequences)
    lists = []
    start = 0
    for length in lengths:
        lists.append(flat[start : start + length])
        start += length
    *fields, table_lens = lists
    tables = []
    for length in table_lens:
        tables.append(flat[start : start + length])
        start += length
    assert start == len(flat), "a plan of another length than it says"
    token_ids, positions, slot_mapping, query_lens, context_lens, logit_rows = fields
    return StepPlan(
        token_ids, positions, slot_mapping, query_lens, context_lens, tables, logit_rows
    )
