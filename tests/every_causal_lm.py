"""Every causal language model type that transformers offers, shrunken by one set of rules.

Sizes are looked up by the names that configurations give them. What changes a model's behaviour
with the position is kept and brought near: windows, clips, original context lengths.
"""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

WINDOW = 16
VOCAB_SIZE = 96
_MOST_PARAMETERS = 10_000_000

_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    **dict.fromkeys(("shape_vocab_size", "pronunciation_vocab_size"), VOCAB_SIZE),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "hidden_dim", "dim_model"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("decoder_layers",), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads", "encoder_layers"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "index_topk", "index_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts",), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "index_n_heads", "zero_expert_num"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), WINDOW),
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "v_head_dim": 6,
    "num_kv_shared_layers": 0,
    "clip_qkv": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED = ["sliding_attention"] * 3 + ["full_attention"]
# What the rules do not get right, by model type, or what a type as it comes leaves out although
# its checkpoints have it.
_SPECIAL: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
            for kind in _MIXED
        },
    },
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2},
        "ffn_config": {"hidden_size": 32},
    },
    "dots1": {"n_shared_experts": 1},
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    },
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", *["minimax_m3_sparse"] * 3]},
    "longcat_flash": {"moe_topk": 2},
    "xmod": {"default_language": "en_XX"},
}


def full_config(model_type: str) -> PreTrainedConfig:
    """As the type comes, with what its own defaults contradict put right."""
    try:
        return AutoConfig.for_model(model_type)
    except (ValueError, StrictDataclassError):
        return AutoConfig.for_model(model_type, **_SPECIAL.get(model_type, {}))


def tiny_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """Raises whatever the configuration class raises where it cannot be made so small."""
    default = full_config(model_type).to_dict()
    sizes = _merged(_shrunken(default), _SPECIAL.get(model_type, {})) | changes
    config = AutoConfig.for_model(model_type, **sizes)
    for part in (config, config.get_text_config(decoder=True)):
        part._experts_implementation = "eager"  # the grouped kernel knows no float64
    return config


def tiny_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Random, the same numbers in every type; weights wide enough that logits depend on all."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    size = sum(parameter.numel() for parameter in skeleton.parameters())
    assert size <= _MOST_PARAMETERS, f"{config.model_type} keeps {size} parameters"
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype)  # type: ignore[arg-type]
    return model.eval()


def _shrunken(default: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: size for name, size in _SIZES.items() if name in default}
    if default.get("qk_rope_head_dim"):
        sizes["num_key_value_heads"] = 4
        if "head_dim" in default:
            sizes["head_dim"] = 4
        if default.get("q_lora_rank") is None:
            sizes.pop("q_lora_rank", None)
    if "use_sliding_window" in default:
        sizes.update(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0)
    kinds = set(default.get("layer_types") or ())
    if default.get("is_decoder") is False and not default.get("is_encoder_decoder"):
        sizes["is_decoder"] = True  # what its checkpoints say where they are language models
    slides = default.get("sliding_window") is not None or "use_sliding_window" in default
    if slides and kinds and kinds <= set(_MIXED):
        sizes["layer_types"] = _MIXED
    rope = default.get("rope_parameters")
    if isinstance(rope, dict) and "original_max_position_embeddings" in rope:
        sizes["rope_parameters"] = {**rope, "original_max_position_embeddings": WINDOW}
    for name, part in default.items():
        if isinstance(part, dict) and name.endswith("_config"):
            kind = {"model_type": part["model_type"]} if part.get("model_type") else {}
            sizes[name] = {**kind, **_shrunken(part)}
    return sizes


def _merged(sizes: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Parts in parts are merged, too."""
    merged = dict(sizes)
    for name, value in changes.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before, value) if both else value
    return merged
