"""Windows come from the masks that models build, whatever their attributes say."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from specdec.config import CacheConfig
from specdec.errors import ConfigError
from specdec.model.loader import prepare_model
from specdec.model.mask_rule import window_of
from specdec.model.runner import ModelRunner
from tests.every_causal_lm import WINDOW, tiny_config, tiny_model

MIXED = [WINDOW, WINDOW, WINDOW, None]


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("exaone4", MIXED),  # the window stands on every module, full attention or not
        ("exaone_moe", MIXED),
        ("kolibri1", MIXED),
        ("phimoe", [WINDOW] * 4),  # the window is in the mask alone
        ("mistral", [WINDOW] * 4),
        ("llama", [None] * 4),
    ],
)
def test_windows_by_layer(name: str, windows: list[int | None]) -> None:
    model = tiny_model(tiny_config(name), torch.float64)
    loaded = prepare_model(model, torch.float64, torch.device("cpu"))
    runner = ModelRunner(loaded, CacheConfig(block_size=4, num_blocks=4))
    assert [layer.window for layer in runner.layers] == windows


@pytest.mark.parametrize("window", [1, 2, 16, 4096, 131072])
def test_windows_are_found_at_any_length(window: int) -> None:
    rule = sliding_window_causal_mask_function(window)
    assert window_of(rule, 131072) == (None if window == 131072 else window)


def test_causal_rule_has_no_window() -> None:
    assert window_of(causal_mask_function, 1 << 40) is None


def test_chunks_are_no_window() -> None:
    rule = chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.long))
    with pytest.raises(ConfigError, match="neither causal nor a sliding window"):
        window_of(rule, 256)


def test_a_look_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither causal"):
        window_of(lambda _b, _h, query, key: key <= query + 1, 256)


def test_masks_of_the_input_are_refused() -> None:
    seen = torch.ones(8, dtype=torch.bool)
    with pytest.raises(ConfigError, match="more than positions"):
        window_of(lambda _b, _h, query, key: seen[key] & (key <= query), 256)
