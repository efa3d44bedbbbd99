"""Tiny random models of the families that are served, one per attention feature."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA: dict[str, Any] = {
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 10,
    "final_logit_softcapping": 3.0,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "phi3": {"sliding_window": None},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_GEMMA, "tie_word_embeddings": True},
    "mixtral": {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "head_dim": 4,
    },
}


def build_tiny(family: str, dtype: torch.dtype, **changes: Any) -> PreTrainedModel:
    """A random model of the family, the same numbers in every dtype; weights wide enough that
    logits depend on everything."""
    config = AutoConfig.for_model(family, **{**_COMMON, **FAMILIES.get(family, {}), **changes})
    config._experts_implementation = "eager"  # the grouped kernel knows no float64
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.to(dtype).eval()
