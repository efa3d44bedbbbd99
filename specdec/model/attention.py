"""Paged attention for any transformers model, attached through its AttentionInterface.

The function that layers call writes their keys and values to the pool and attends over it. Here
is the path that works everywhere: whole blocks are gathered and attended by
scaled_dot_product_attention; `attention_backend.py` has the others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from specdec.errors import ConfigError
from specdec.model.attention_probe import (
    PROBE_NAME,
    GeometryProbe,
    LayerAttention,
    layer_index,
)
from specdec.model.projections import ProjectionProbe
from specdec.model.step_context import KeyRange, SequenceGroup, StepContext

ATTENTION_NAME = "specdec_paged"


def write_and_attend(
    step: StepContext | ProjectionProbe, layer: int, query: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Store this step's keys and values, rows [T, row_size] as the pool keeps them, and attend
    query [T, heads, key_dim] over all that is stored. Returns [T, heads * value_dim]."""
    if isinstance(step, ProjectionProbe):
        return step.record(layer, query, rows)
    step.pool.write(layer, step.slots, rows)
    return attend(step, layer, query)


def attend(step: StepContext, layer: int, query: torch.Tensor) -> torch.Tensor:
    """Attention of query [T, heads, key_dim] over the pool, this step's keys already written.

    Returns [T, heads * value_dim].
    """
    if step.varlen is not None:
        return step.varlen.attend(step.pool, layer, step.layers[layer], query)
    outputs = [_attend_group(step, layer, group, query) for group in step.groups]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if step.restore is None else output.index_select(0, step.restore)


def _attend_group(
    step: StepContext, layer: int, group: SequenceGroup, query: torch.Tensor
) -> torch.Tensor:
    spec = step.layers[layer]
    keys = step.key_range(group, spec.window)
    batch = len(group.members)
    if group.rows is not None:
        query = query.index_select(0, group.rows)
    elif len(step.groups) > 1:
        query = query[group.start : group.end]
    query = query.view(batch, group.max_query, spec.num_heads, -1).transpose(1, 2)
    rows = step.pool.gather(layer, keys.blocks).view(batch, -1, spec.kv.row_size)
    if keys.num_keys < rows.shape[1]:
        rows = rows[:, : keys.num_keys]
    key, value = rows.split_with_sizes((spec.kv.key_size, spec.kv.value_size), -1)
    shape = (batch, keys.num_keys, spec.kv.num_kv_heads, -1)
    key, value = key.view(shape).transpose(1, 2), value.view(shape).transpose(1, 2)
    output = _scaled_dot_product(query, key, value, keys, spec)
    output = output.transpose(1, 2).reshape(batch * group.max_query, -1)
    return output if group.kept is None else output.index_select(0, group.kept)


def _scaled_dot_product(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: KeyRange,
    spec: LayerAttention,
) -> torch.Tensor:
    if spec.softcap is not None:
        return _softcapped(query, key, value, keys, spec)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=keys.mask,
        is_causal=keys.is_causal,
        scale=spec.scaling,
        enable_gqa=spec.num_heads != spec.kv.num_kv_heads,
    )


def _softcapped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: KeyRange,
    spec: LayerAttention,
) -> torch.Tensor:
    """Gemma 2: scores are squashed to (-softcap, softcap) before the mask; no fused kernel."""
    assert spec.softcap is not None
    batch, heads, width, _ = query.shape
    grouped = query.reshape(batch, spec.kv.num_kv_heads, -1, width, spec.kv.key_dim)
    scores = torch.matmul(grouped, key.unsqueeze(2).transpose(-1, -2)) * spec.scaling
    scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if keys.mask is not None:
        scores = scores + keys.mask.unsqueeze(2)
    elif keys.is_causal:
        visible = torch.ones(width, width, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    output = torch.matmul(torch.softmax(scores, dim=-1), value.unsqueeze(2))
    return output.view(batch, heads, width, -1)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """The function registered with transformers. query, key, value: [1, heads, T, dim].

    Returns [1, T, heads, value_dim], and None for the weights.
    """
    step = arguments.get("specdec_step")
    if isinstance(step, GeometryProbe):
        return step.record(module, query, key, value, attention_mask, arguments), None
    if not isinstance(step, StepContext | ProjectionProbe):
        raise ConfigError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention "
            "function; it cannot be paged",
            field="model",
        )
    num_tokens = query.shape[2]
    rows = torch.cat(
        (
            key[0].transpose(0, 1).reshape(num_tokens, -1),
            value[0].transpose(0, 1).reshape(num_tokens, -1),
        ),
        dim=1,
    )
    queries = query[0].transpose(0, 1).contiguous()
    output = write_and_attend(step, layer_index(module), queries, rows)
    return output.view(1, num_tokens, query.shape[1], -1), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
AttentionInterface.register(PROBE_NAME, paged_attention)
