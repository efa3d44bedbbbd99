"""Sizes that a model cannot be split into, and plans as the other ranks receive them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LlavaConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

from specdec.errors import ConfigError
from specdec.model.plan_codec import decode_plan, encode_plan
from specdec.model.tensor_split import check_tensor_parallel
from specdec.step_plan import StepPlan

LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8}
SMOLLM2 = LlamaConfig(
    hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3
)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (LlamaConfig(**LLAMA, num_key_value_heads=4), (1, 2, 4)),
        (LlamaConfig(**LLAMA, num_key_value_heads=8), (8,)),
        (SMOLLM2, (3,)),
        (MixtralConfig(**LLAMA, num_key_value_heads=4), (4,)),
        (GPT2Config(), (1,)),
    ],
)
def test_sizes_that_fit(config, sizes):
    for size in sizes:
        check_tensor_parallel(config, size)


@pytest.mark.parametrize(
    ("config", "size", "reason"),
    [
        (SMOLLM2, 2, "9 attention heads; sizes that fit: 1, 3$"),
        (SMOLLM2, 9, "3 key/value heads; sizes that fit: 1, 3$"),
        (LlamaConfig(**LLAMA, num_key_value_heads=4), 3, "8 attention heads.*: 1, 2, 4$"),
        (LlamaConfig(**LLAMA, num_key_value_heads=4), 8, "4 key/value heads"),
        (
            LlamaConfig(**LLAMA | {"intermediate_size": 98}, num_key_value_heads=4),
            4,
            "98 intermediate units; sizes that fit: 1, 2$",
        ),
        (Gemma3TextConfig(num_attention_heads=4, num_key_value_heads=1), 2, "1 key/value heads"),
        (
            Qwen3MoeConfig(
                intermediate_size=96,
                moe_intermediate_size=6,
                num_attention_heads=8,
                num_key_value_heads=4,
            ),
            4,
            "6 intermediate units of each expert",
        ),
        (GPT2Config(), 2, "type gpt2 have no tensor-parallel plan"),
        (
            LlavaConfig(text_config=LlamaConfig(**LLAMA, num_key_value_heads=2).to_dict()),
            4,
            "2 key/value heads",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_reason(config, size, reason):
    with pytest.raises(ConfigError, match=f"tensor_parallel_size {size}: .*{reason}") as caught:
        check_tensor_parallel(config, size)
    assert caught.value.field == "tensor_parallel_size"


def test_quantised_weights_are_refused_only_where_split():
    check_tensor_parallel(SMOLLM2, 1, "int8")
    with pytest.raises(ConfigError, match="int8 weights cannot be split"):
        check_tensor_parallel(SMOLLM2, 3, "int8")


_NUMBERS = st.integers(0, 2**31 - 1)
_LISTS = st.lists(_NUMBERS, max_size=20)


@given(
    tokens=st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=20),
    sequences=st.lists(st.tuples(_NUMBERS, _NUMBERS, _LISTS), max_size=5),
    logit_rows=_LISTS,
)
def test_a_plan_arrives_as_it_was_sent(tokens, sequences, logit_rows):
    columns = [list(column) for column in zip(*tokens, strict=True)] or [[], [], []]
    rows = [list(column) for column in zip(*sequences, strict=True)] or [[], [], []]
    plan = StepPlan(*columns, *rows, logit_rows)
    assert decode_plan(encode_plan(plan)) == plan


def test_a_plan_is_four_bytes_a_number():
    plan = StepPlan()
    plan.add([5, 6, 7], num_computed_tokens=30, block_table=[3, 1, 2], block_size=16,
             num_logit_rows=2)  # fmt: skip
    numbers = encode_plan(plan)
    assert numbers.dtype == np.int32
    # 3 counts; 3 each of ids, positions, slots; 2 lengths; 2 rows; a table length and 3 entries.
    assert len(numbers) == 3 + 9 + 2 + 2 + 1 + 3


def test_numbers_beyond_32_bits_are_an_error_not_another_number():
    plan = StepPlan(token_ids=[2**31], positions=[0], slot_mapping=[0])
    with pytest.raises(OverflowError):
        encode_plan(plan)
