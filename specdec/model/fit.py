"""How much memory a model will take, told from its configuration alone: no weight is loaded.

An estimate for `specdec doctor`: activations, allocator slack and the process itself come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from specdec.config import CacheConfig, ModelConfig
from specdec.kvcache.kv_pool import num_blocks_for
from specdec.model.loader import (
    load_config,
    max_context,
    refuse_unsupported,
    resolve_device,
    resolve_dtype,
)


@dataclass(frozen=True, slots=True)
class ModelFit:
    """Memory of one rank, in bytes. `num_kv_tokens` is what the KV cache holds, None where a
    profile run on the device decides."""

    model_type: str
    device: str
    dtype: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    num_kv_tokens: int | None


def estimate_fit(model: ModelConfig, cache: CacheConfig) -> ModelFit:
    """Raises ConfigError where the model cannot be found or cannot be served."""
    config = load_config(model)
    refuse_unsupported(config)
    device = resolve_device(model.device)
    dtype = resolve_dtype(model.dtype, config, device)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=dtype)
    text = config.get_text_config(decoder=True)
    ranks = model.tensor_parallel_size
    kv_bytes_per_token = _kv_bytes_per_token(text, dtype) // ranks
    num_blocks = _num_blocks(cache, kv_bytes_per_token, device)
    return ModelFit(
        model_type=config.model_type,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        num_parameters=sum(parameter.numel() for parameter in skeleton.parameters()),
        vocab_size=int(text.vocab_size),
        max_model_len=max_context(text),
        weight_bytes=_weight_bytes(skeleton, model.quantization == "int8") // ranks,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_cache_bytes=(num_blocks or 0) * cache.block_size * kv_bytes_per_token,
        num_kv_tokens=None if num_blocks is None else num_blocks * cache.block_size,
    )


def _num_blocks(cache: CacheConfig, kv_bytes_per_token: int, device: torch.device) -> int | None:
    sized = cache.num_blocks is not None or cache.kv_cache_bytes is not None
    if device.type == "cuda" and not sized:
        return None
    return num_blocks_for(cache, kv_bytes_per_token * cache.block_size, None)


def _weight_bytes(skeleton: torch.nn.Module, is_int8: bool) -> int:
    """Tied weights count once; int8 turns the weights of linear layers into bytes."""
    linear = {
        id(module.weight) for module in skeleton.modules() if isinstance(module, torch.nn.Linear)
    }
    return sum(
        parameter.numel() * (1 if is_int8 and id(parameter) in linear else parameter.itemsize)
        for parameter in skeleton.parameters()
    )


def _kv_bytes_per_token(text: PreTrainedConfig, dtype: torch.dtype) -> int:
    num_heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    return int(2 * text.num_hidden_layers * num_kv_heads * head_dim * dtype.itemsize)
