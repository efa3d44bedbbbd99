"""The check at start: what is wrong is refused with layer and place, and what it may cost."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch import nn

from specdec.config import CacheConfig, ModelConfig
from specdec.errors import ConfigError
from specdec.model import attention, runner
from specdec.model.check_texts import check_texts, checked_steps, num_blocks
from specdec.model.loader import LoadedModel, load_model, prepare_model
from specdec.model.named_lengths import named_lengths, positions_around
from specdec.model.runner import ModelRunner
from specdec.model.step_context import StepContext
from tests.unit.model.tiny import build_tiny

CACHE = CacheConfig(block_size=4, num_blocks=4)


def load(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> LoadedModel:
    return prepare_model(build_tiny(family, dtype, **changes), dtype, torch.device("cpu"))


def test_a_wrong_window_names_layer_and_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 1 attends over all keys although its mask has a window of seven."""
    right = attention._attend_group

    def wrong(step: StepContext, layer: int, *rest: Any) -> torch.Tensor:
        if layer == 1:
            step.layers = [dataclasses.replace(spec, window=None) for spec in step.layers]
        return right(step, layer, *rest)

    monkeypatch.setattr(attention, "_attend_group", wrong)
    with pytest.raises(ConfigError, match=r"self-check.*layer 1 differs.*position \d+") as caught:
        ModelRunner(load("mistral"), CACHE)
    assert caught.value.field == "model"


def test_a_model_numbers_its_positions_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no positions are given this one begins at two: seen by the probe, and by the check."""
    loaded = load("gpt2")
    loaded = dataclasses.replace(loaded, max_len=loaded.max_len - 2)
    own = loaded.model.transformer.forward

    def forward(input_ids: torch.Tensor, position_ids: Any = None, **named: Any) -> Any:
        if position_ids is None:
            position_ids = torch.arange(2, input_ids.shape[1] + 2)[None]
        return own(input_ids=input_ids, position_ids=position_ids, **named)

    monkeypatch.setattr(loaded.model.transformer, "forward", forward)
    with pytest.raises(ConfigError, match="does not number its positions"):
        ModelRunner(loaded, CACHE)
    monkeypatch.setattr(runner, "_SAME_POSITIONS", float("inf"))
    with pytest.raises(ConfigError, match=r"self-check.*layer 0 differs"):
        ModelRunner(loaded, CACHE)


class _Wrong(nn.Linear):
    """Right but for one output of one late position."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output = super().forward(rows)
        return output * 1.01 if rows.shape[-2] == 5 else output


def test_rows_of_draft_tokens_are_checked() -> None:
    """A head that errs only where five rows are asked for together: seen, and no layer blamed."""
    loaded = load("llama")
    loaded.model.lm_head.__class__ = _Wrong
    with pytest.raises(ConfigError, match="its logits differ"):
        ModelRunner(loaded, CACHE)


def test_the_check_can_be_left_out(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    build_tiny("llama", torch.float64).save_pretrained(tmp_path)
    caplog.set_level(logging.INFO, logger="specdec.model.self_check")
    for wanted in (False, True):
        config = ModelConfig(model=str(tmp_path), dtype="float64", device="cpu", self_check=wanted)
        ModelRunner(load_model(config), CACHE)
        assert ("self-check passed in" in caplog.text) is wanted


def test_a_model_that_holds_no_numbers_in_one_row_is_served() -> None:
    """What is not finite in the model's own forward is not compared."""
    model = build_tiny("llama", torch.float64)
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    ModelRunner(prepare_model(model, torch.float64, torch.device("cpu")), CACHE)


def test_texts_reach_every_length_within_bounds() -> None:
    """Near lengths inside the long text, far ones with positions alone."""
    loaded = load("llama", max_position_embeddings=1 << 20)
    long, *far = check_texts(loaded, [16, 300, 131072], num_heads=4, block_size=16)
    assert {14, 15, 16, 17, 298, 299, 300, 301, 31, 32} <= set(long.rows)
    assert len(long.token_ids) < 400
    assert [text.length for text in far] == [131072]
    assert {131071, 131072} <= {far[0].first + row for row in far[0].rows}
    large = dataclasses.replace(loaded, max_len=1 << 20)
    assert len(check_texts(large, [4096], num_heads=64, block_size=16)[0].token_ids) < 100


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
def test_steps_fit_the_pool_that_they_ask_for(block_size: int) -> None:
    texts = check_texts(load("llama"), [16], num_heads=4, block_size=block_size)
    slots = [slot for plan, _ in checked_steps(texts, block_size) for slot in plan.slot_mapping]
    assert max(slots) < num_blocks(texts, block_size) * block_size
    assert len(set(slots)) == len(slots)


def test_steps_compute_every_row_once_and_in_order() -> None:
    loaded = load("llama", max_position_embeddings=1 << 20)
    texts = check_texts(loaded, [16, 131072], num_heads=4, block_size=4)
    seen = [place for _, places in checked_steps(texts, 4) for place in places]
    for index, text in enumerate(texts):
        assert {row for at, row in seen if at == index} == set(range(len(text.rows)))
    lens = [plan.query_lens for plan, _ in checked_steps(texts, 4)]
    assert [1] in lens
    assert any(5 in step and len(step) > 1 for step in lens)


def test_lengths_that_a_configuration_names() -> None:
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 48,
    }
    loaded = load("mistral", rope_parameters=rope)
    runner = ModelRunner(loaded, CACHE)
    lengths = named_lengths(loaded.config, runner.layers, loaded.max_len)
    assert {7, 48, 256} <= set(lengths)
    assert {6, 7, 13, 14, 47, 48, 95, 96, 255} <= set(positions_around(lengths, 256))
