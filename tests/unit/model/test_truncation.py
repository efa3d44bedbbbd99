"""A model cut to its first layers gives what its whole gives after those layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from specdec.config import CacheConfig
from specdec.errors import ConfigError
from specdec.model.loader import LoadedModel, prepare_model
from specdec.model.runner import ModelRunner
from specdec.model.truncation import keep_first_layers
from specdec.step_plan import StepPlan
from tests.unit.model.tiny import build_tiny

TEXT = [5, 17, 3, 80, 41, 5, 17, 66]


def load(family: str) -> LoadedModel:
    return prepare_model(build_tiny(family, torch.float64), torch.float64, torch.device("cpu"))


def logits_after(family: str, num_layers: int) -> torch.Tensor:
    """The whole model's own norm and head, over its hidden states after `num_layers` layers."""
    model = build_tiny(family, torch.float64)
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        output = model.get_decoder()(
            torch.tensor([TEXT]), use_cache=False, output_hidden_states=True
        )
        hidden = model.get_decoder().norm(output.hidden_states[num_layers])
        logits: torch.Tensor = model.lm_head(hidden)[0]
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "mixtral"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_logits_are_those_after_the_last_layer_kept(family, num_layers):
    cut = keep_first_layers(load(family), num_layers)
    runner = ModelRunner(cut, CacheConfig(block_size=4, num_blocks=2))
    plan = StepPlan()
    plan.add(TEXT, 0, [1, 0], 4, len(TEXT))
    torch.testing.assert_close(
        runner.run(plan), logits_after(family, num_layers), atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("num_layers", [0, 3, 4])
def test_as_many_layers_as_there_are_or_none_is_refused(num_layers):
    with pytest.raises(ConfigError, match=r"between 1 and 2 of the 3 layers of LlamaForCausalLM"):
        keep_first_layers(load("llama"), num_layers)


def test_layers_that_need_later_ones_are_refused_by_name():
    loaded = load("llama")
    loaded.config.num_kv_shared_layers = 1
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM cannot be cut.*share keys and values"):
        keep_first_layers(loaded, 1)


def test_a_decoder_without_a_list_of_layers_is_refused_by_name():
    loaded = load("llama")
    loaded.model.get_decoder().layers = nn.Sequential(*loaded.model.get_decoder().layers)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM cannot be cut.*plain list of layers"):
        keep_first_layers(loaded, 1)


def test_one_rank_of_several_is_refused():
    with pytest.raises(ConfigError, match="split over several ranks"):
        keep_first_layers(replace(load("llama"), is_whole=False), 1)
