"""What a loaded model's attention layers compute, found out by one small forward at start.

Nothing is read from class names, and no mask from attributes: the probe stands where the step's
metadata will stand and records what each layer passes to its attention function, together with
the mask that the model itself builds for that layer. What a paged kernel cannot honour is refused
here, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionMaskInterface, PreTrainedModel

from specdec.errors import ConfigError
from specdec.kvcache.kv_pool import KVLayerSpec
from specdec.model.mask_rule import MaskFunction, window_of

# The attention implementation that a model has while it is probed. Unlike the one it serves with,
# it is known to transformers' mask construction, so that every layer is handed its mask.
PROBE_NAME = "specdec_probe"
_RULE = "specdec_rule"

# Keyword arguments of attention functions that carry no mathematics that we would have to follow.
_NEUTRAL = frozenset(
    {"dropout", "position_ids", "use_cache", "cache", "past_key_values", "output_attentions"}
    | {"output_hidden_states", "output_router_logits", "return_dict", "position_embeddings"}
    | {"cache_position", "logits_to_keep", "labels", "is_causal"}
)
# `sliding_window` is honoured through the mask, which transformers' own kernels follow.
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
    layer of this rank asks for, and refuses what we cannot honour.

    modules: the attention modules themselves, by layer index. first_query: what the layer that
    attends first asks with, its positions in it, [1, heads, T, dim].
    """

    def __init__(self, max_len: int) -> None:
        self.layers: dict[int, LayerAttention] = {}
        self.modules: dict[int, torch.nn.Module] = {}
        self.first_query: torch.Tensor | None = None
        self._max_len = max_len
        self._windows: dict[int, tuple[MaskFunction, int | None]] = {}

    def record(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        arguments: dict[str, Any],
    ) -> torch.Tensor:
        _refuse_unknown(module, arguments)
        layer = layer_index(module)
        if layer in self.layers:
            raise _refusal(
                module, f"attends twice per pass in layer {layer}, which is not supported"
            )
        scaling = arguments.get("scaling")
        if not isinstance(scaling, int | float | None):
            raise _refusal(module, "scales its scores by more than one number")
        self.layers[layer] = LayerAttention(
            kv=KVLayerSpec(key.shape[1], key.shape[3], value.shape[3]),
            num_heads=query.shape[1],
            scaling=query.shape[3] ** -0.5 if scaling is None else float(scaling),
            window=self._window(module, attention_mask),
            softcap=arguments.get("softcap"),
        )
        self.modules[layer] = module
        if self.first_query is None:
            self.first_query = query
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    def _window(self, module: torch.nn.Module, mask: torch.Tensor | None) -> int | None:
        """The window of the mask that the layer is handed; no mask is plain causality."""
        if mask is None:
            return None
        rule: MaskFunction | None = getattr(mask, _RULE, None)
        if rule is None:
            raise _refusal(module, "builds an attention mask of its own, which is not supported")
        # The rule is kept beside its result, so that its id is not taken by another.
        found = self._windows.get(id(rule))
        if found is None:
            try:
                found = self._windows[id(rule)] = rule, window_of(rule, self._max_len)
            except ConfigError as error:
                raise _refusal(module, f"cannot be paged: {error.message}") from error
        return found[1]


def layer_index(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise _refusal(module, "has no layer index; it cannot be paged")
    return layer


@contextmanager
def attention_implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model attends through another implementation of that name, for a while."""
    before = model.config.get_text_config(decoder=True)._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _refuse_unknown(module: torch.nn.Module, arguments: dict[str, Any]) -> None:
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        raise _refusal(module, "is not causal; only causal language models are supported")
    if getattr(module, "sinks", None) is not None or arguments.get("s_aux") is not None:
        raise _refusal(module, "uses attention sinks, which are not supported")
    for key, argument in arguments.items():
        if argument is not None and key not in _NEUTRAL and key not in _HONOURED:
            raise _refusal(module, f"passes attention argument {key!r}, which is not supported")


def _refusal(module: torch.nn.Module, why: str) -> ConfigError:
    """Names the module; whoever runs the probe adds the model type."""
    return ConfigError(f"{type(module).__name__} {why}", field="model")


def _ruled_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, **_: Any
) -> torch.Tensor:
    """What mask construction hands to the layers of a probed model: a mask of the usual shape
    that carries the rule it stands for."""
    mask = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool)
    setattr(mask, _RULE, mask_function)
    return mask


AttentionMaskInterface.register(PROBE_NAME, _ruled_mask)
