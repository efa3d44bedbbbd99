"""What cannot be rolled back or paged is refused at start, by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import is_timm_available

from specdec.config import CacheConfig, ModelConfig
from specdec.errors import ConfigError
from specdec.model.loader import (
    load_model,
    max_context,
    prepare_model,
    refuse_unsupported,
    resolve_dtype,
)
from specdec.model.runner import ModelRunner
from tests.every_causal_lm import tiny_config, tiny_model
from tests.unit.model.tiny import build_tiny

RECURRENT = [
    *("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "zamba", "zamba2"),
    *("qwen3_next", "rwkv", "recurrent_gemma", "nemotron_h", "granitemoehybrid", "xlstm"),
    *("minimax", "kimi_linear", "olmo_hybrid"),
]


@pytest.mark.parametrize("name", [n for n in RECURRENT if n in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES])
def test_recurrent_models_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        refuse_unsupported(AutoConfig.for_model(name))
    assert caught.value.field == "model"


def test_foreign_layer_types_are_named() -> None:
    layer_types = ["conv", "full_attention", "conv"]
    config = AutoConfig.for_model("lfm2", num_hidden_layers=3, layer_types=layer_types)
    with pytest.raises(ConfigError, match=r"lfm2.*conv layers"):
        refuse_unsupported(config)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*encoder-decoder"):
        refuse_unsupported(AutoConfig.for_model(name))


@pytest.mark.parametrize("name", ["llama4_text", "bloom", "mpt"])
def test_masks_that_a_paged_kernel_does_not_see_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        refuse_unsupported(AutoConfig.for_model(name))


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "mixtral"]
)
def test_ordinary_models_are_accepted(name: str) -> None:
    refuse_unsupported(AutoConfig.for_model(name))


def test_attention_that_goes_through_the_interface_undeclared_is_accepted() -> None:
    name = "biogpt"
    config = AutoConfig.for_model(name)
    assert not AutoModelForCausalLM._model_mapping[type(config)]._supports_attention_backend
    refuse_unsupported(config)


def test_a_model_of_several_stacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"blt.*no num_hidden_layers"):
        refuse_unsupported(AutoConfig.for_model("blt"))


def make_runner(family: str, **changes: Any) -> ModelRunner:
    model = build_tiny(family, torch.float32, **changes)
    loaded = prepare_model(model, torch.float32, torch.device("cpu"))
    return ModelRunner(loaded, CacheConfig(num_blocks=4))


def test_attention_sinks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"GptOssAttention.*sinks"):
        make_runner("gpt_oss", num_local_experts=2, num_experts_per_tok=1)


def test_bert_is_served_as_a_decoder_only() -> None:
    def make(is_decoder: bool) -> ModelRunner:
        model = tiny_model(tiny_config("bert", is_decoder=is_decoder), torch.float32)
        loaded = prepare_model(model, torch.float32, torch.device("cpu"))
        return ModelRunner(loaded, CacheConfig(num_blocks=4))

    make(is_decoder=True)
    with pytest.raises(ConfigError, match=r"'bert'.*BertSelfAttention is not causal"):
        make(is_decoder=False)


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(ConfigError, match="not causal"):
        make_runner("gemma3_text", use_bidirectional_attention=True)


class _SlopedAttention(torch.nn.Module):
    """Passes an argument that changes the mathematics to its attention function."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.attention(*arguments, alibi_slopes=torch.ones(4), **named)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt_oss", "GptOssAttention uses attention sinks"),
        ("doge", "DogeAttention builds an attention mask of its own"),
        ("diffllama", "DiffLlamaAttention attends twice per pass in layer 0"),
        ("nemotron", "NemotronAttention does not pass keyword arguments on"),
        ("mllama", "lets 3 of 4 layers attend through paged attention"),
        ("gemma4_assistant", "cannot return logits of selected rows"),
        ("roberta", "RobertaForCausalLM does not number its positions 0, 1, 2"),
    ],
)
def test_what_a_forward_finds_out_names_the_model_type(name: str, why: str) -> None:
    model = tiny_model(tiny_config(name), torch.float32)
    loaded = prepare_model(model, torch.float32, torch.device("cpu"), is_checked=False)
    with pytest.raises(
        ConfigError, match=f"model type '{name}.*cannot be served: .*{why}"
    ) as caught:
        ModelRunner(loaded, CacheConfig(num_blocks=4))
    assert caught.value.field == "model"


def test_unknown_attention_argument_is_refused_by_name() -> None:
    model = build_tiny("llama", torch.float32)
    layer = model.model.layers[1]
    layer.self_attn = _SlopedAttention(layer.self_attn)
    loaded = prepare_model(model, torch.float32, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"LlamaAttention.*alibi_slopes"):
        ModelRunner(loaded, CacheConfig(num_blocks=4))


class _NoAttention(torch.nn.Module):
    """A layer that mixes tokens by other means than attention."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return hidden_states.cumsum(1), None


def test_layer_without_attention_is_refused() -> None:
    model = build_tiny("llama", torch.float32)
    model.model.layers[1].self_attn = _NoAttention()
    loaded = prepare_model(model, torch.float32, torch.device("cpu"))
    with pytest.raises(ConfigError, match="2 of 3 layers attend"):
        ModelRunner(loaded, CacheConfig(num_blocks=4))


def test_int8_is_refused_where_it_does_not_exist(tmp_path: Any) -> None:
    build_tiny("llama", torch.float32).save_pretrained(tmp_path)
    config = ModelConfig(model=str(tmp_path), quantization="int8", dtype="float64", device="cpu")
    with pytest.raises(ConfigError, match="int8"):
        load_model(config)


def test_a_model_that_chooses_its_attention_when_it_is_made_is_refused(tmp_path: Any) -> None:
    """Such a model knows our attention by name as little when it is made as later."""
    tiny_model(tiny_config("git"), torch.float32).save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(model=str(tmp_path), device="cpu"))
    with pytest.raises(ConfigError, match=r"'git'.*lets 0 of 4 layers attend"):
        ModelRunner(loaded, CacheConfig(num_blocks=4))


@pytest.mark.skipif(is_timm_available(), reason="the package that the model needs is here")
def test_a_missing_package_is_named(tmp_path: Any) -> None:
    tiny_config("gemma3n").save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"gemma3n.*package is missing: .*timm") as caught:
        load_model(ModelConfig(model=str(tmp_path), device="cpu"))
    assert caught.value.field == "model"


def test_missing_model_names_the_field(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="nowhere") as caught:
        load_model(ModelConfig(model=str(tmp_path / "nowhere")))
    assert caught.value.field == "model"


def test_context_stops_where_rotary_frequencies_would_change() -> None:
    config = AutoConfig.for_model("llama", max_position_embeddings=4096)
    assert max_context(config) == 4096
    config.rope_parameters = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 1024,
    }
    assert max_context(config) == 1024


def test_automatic_dtype() -> None:
    config = AutoConfig.for_model("llama", dtype="bfloat16")
    assert resolve_dtype("auto", config, torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", config, torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float64", config, torch.device("cpu")) == torch.float64
