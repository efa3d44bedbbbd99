"""What a loaded model's attention layers compute, found out by one small forward at start.

Nothing is read from class names: the probe stands where the step's metadata will stand and
records what each layer passes to its attention function. What a paged kernel cannot honour is
refused here, by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specdec.errors import ConfigError
from specdec.kvcache.kv_pool import KVLayerSpec

# Keyword arguments of attention functions that carry no mathematics that we would have to follow.
_NEUTRAL = frozenset(
    {"dropout", "position_ids", "use_cache", "cache", "past_key_values", "output_attentions"}
    | {"output_hidden_states", "output_router_logits", "return_dict", "position_embeddings"}
    | {"cache_position", "logits_to_keep", "labels", "is_causal"}
)
_HONOURED = frozenset({"scaling", "sliding_window", "softcap", "specdec_step"})


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What one attention layer computes: its geometry on this rank and its deviations from plain
    causal attention. `window`: keys a query sees, itself included; None = all."""

    kv: KVLayerSpec
    num_heads: int
    scaling: float
    window: int | None
    softcap: float | None


class GeometryProbe:
    """Stands in for a StepContext in one small forward at start: records what each attention
    layer of this rank asks for, and refuses what we cannot honour."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerAttention] = {}

    def record(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        arguments: dict[str, Any],
    ) -> torch.Tensor:
        _refuse_unknown(module, attention_mask, arguments)
        layer = layer_index(module)
        if layer in self.layers:
            raise ConfigError(f"layer {layer} attends twice per pass, which is not supported")
        scaling = arguments.get("scaling")
        self.layers[layer] = LayerAttention(
            kv=KVLayerSpec(key.shape[1], key.shape[3], value.shape[3]),
            num_heads=query.shape[1],
            scaling=query.shape[3] ** -0.5 if scaling is None else float(scaling),
            window=_window(module, arguments.get("sliding_window")),
            softcap=arguments.get("softcap"),
        )
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def layer_index(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ConfigError(f"{type(module).__name__} has no layer index; it cannot be paged")
    return layer


def _window(module: torch.nn.Module, passed: int | None) -> int | None:
    """The sliding window of a layer; some models keep it on the module and build it into a mask
    that a custom attention function does not get."""
    window = passed if passed is not None else getattr(module, "sliding_window", None)
    return int(window) if window else None


def _refuse_unknown(
    module: torch.nn.Module, attention_mask: torch.Tensor | None, arguments: dict[str, Any]
) -> None:
    name = type(module).__name__
    if attention_mask is not None:
        raise ConfigError(f"{name} builds an attention mask of its own, which is not supported")
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        raise ConfigError(f"{name} is not causal; only causal language models are supported")
    if getattr(module, "sinks", None) is not None or arguments.get("s_aux") is not None:
        raise ConfigError(f"{name} uses attention sinks, which are not supported")
    for key, argument in arguments.items():
        if argument is not None and key not in _NEUTRAL and key not in _HONOURED:
            raise ConfigError(f"{name} passes attention argument {key!r}, which is not supported")
