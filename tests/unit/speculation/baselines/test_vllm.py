"""The table by batch size."""

from __future__ import annotations

import pytest

from specdec.errors import ConfigError
from specdec.speculation.baselines.vllm import EAGLE3_TABLE, TablePolicy
from tests.unit.speculation.baselines.script import batch_of, state


def k_at(policy: TablePolicy, batch: int) -> int:
    return policy.plan(state(batch_of(batch)))[0]


@pytest.mark.parametrize(
    ("batch", "k"), [(1, 3), (64, 3), (65, 1), (128, 1), (129, 0), (512, 0), (513, 0)]
)
def test_documented_table(batch: int, k: int) -> None:
    assert k_at(TablePolicy(8, 0.1), batch) == k


@pytest.mark.parametrize(
    ("batch", "k"), [(1, 5), (16, 5), (17, 4), (32, 4), (33, 3), (64, 3), (65, 1), (129, 0)]
)
def test_documented_table_for_eagle3(batch: int, k: int) -> None:
    assert k_at(TablePolicy(8, 0.1, EAGLE3_TABLE), batch) == k


def test_gaps_and_what_lies_beyond_the_end_take_the_range_before() -> None:
    policy = TablePolicy(8, 0.1, [(1, 2, 6), (5, 8, 2)])
    assert [k_at(policy, batch) for batch in (2, 3, 4, 5, 8, 9, 100)] == [6, 6, 6, 2, 2, 2, 2]


def test_the_limit_bounds_the_table() -> None:
    assert k_at(TablePolicy(2, 0.1), 10) == 2


@pytest.mark.parametrize(
    "table",
    [
        [],
        [(2, 4, 3)],
        [(0, 4, 3)],
        [(1, 4, -1)],
        [(4, 1, 2)],
        [(1, 4, 2), (4, 8, 1)],
        [(1, 4, 2), (3, 3, 1)],
        [(5, 8, 1), (1, 4, 2)],
    ],
)
def test_a_malformed_table_is_refused(table: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ConfigError) as raised:
        TablePolicy(8, 0.1, table)
    assert raised.value.field == "table"
