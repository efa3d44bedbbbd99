"""Paged attention for any transformers model, attached through its AttentionInterface.

A step's index tensors and masks are built once (`StepContext`) and used by every layer. Here is
the CPU backend: keys and values of whole blocks are gathered and attended by
scaled_dot_product_attention, short queries of similar context length in one padded batch,
prefill chunks one by one. What a layer asks for and we cannot honour is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from specdec.errors import ConfigError
from specdec.kvcache.kv_pool import KVLayerSpec, KVPool
from specdec.model.attention_backend import GATHER_SDPA, GATHER_VARLEN, VarlenKeys
from specdec.step_plan import StepPlan

ATTENTION_NAME = "specdec_paged"

# Queries up to this length (a decode token and its draft tokens) share padded batches.
MAX_BATCHED_QUERY = 16
# Contexts of up to this many blocks share a batch whatever their length; longer ones only with
# contexts of the same power of two, so that padding at most doubles the work.
MIN_BLOCK_BUCKET = 16

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


@dataclass(slots=True)
class KeyRange:
    """The keys that a group of sequences reads: whole blocks, and who may see them.

    blocks: [B * N] block ids. num_keys: S, rows used of each sequence's N blocks.
    mask: additive [B, 1, Q, S], or None where every query sees every key, or `is_causal`.
    """

    blocks: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None
    is_causal: bool


@dataclass(slots=True)
class SequenceGroup:
    """Sequences that are attended in one call, queries padded to `max_query`.

    rows: [B * Q] query rows of the step, or None where they are exactly rows start..end.
    kept: positions of real rows among the padded [B * Q], or None where none is padding.
    """

    members: list[int]
    max_query: int
    start: int
    end: int
    rows: torch.Tensor | None
    kept: torch.Tensor | None
    ranges: dict[int | None, KeyRange] = field(default_factory=dict)


class StepContext:
    """One step's tensors for the attention layers; passed through the model's keyword arguments."""

    def __init__(
        self,
        plan: StepPlan,
        pool: KVPool,
        layers: list[LayerAttention],
        device: torch.device,
        backend: str = GATHER_SDPA,
    ) -> None:
        self.plan = plan
        self.pool = pool
        self.layers = layers
        self.device = device
        self.slots = torch.tensor(plan.slot_mapping, device=device)
        self._starts = _starts(plan.query_lens)
        self._rotations: dict[int, tuple[torch.Tensor, torch.Tensor, object]] = {}
        self.restore: torch.Tensor | None = None
        self.groups: list[SequenceGroup] = []
        self.varlen: VarlenKeys | None = None
        if backend == GATHER_VARLEN:
            self.varlen = VarlenKeys(plan, pool.block_size, device)
        else:
            self._group_sequences()

    def _group_sequences(self) -> None:
        """Decide which sequences share a call, and how their rows come back into order."""
        plan, pool = self.plan, self.pool
        self.groups = [self._group(members) for members in _buckets(plan, pool.block_size)]
        order = [row for group in self.groups for row in self._rows_of(group.members)]
        # Where grouping changed the order, output rows are put back by this permutation.
        if order != list(range(len(order))):
            self.restore = torch.tensor(order, device=self.device).argsort()

    def _rows_of(self, members: list[int]) -> list[int]:
        lens = self.plan.query_lens
        return [row for m in members for row in range(self._starts[m], self._starts[m] + lens[m])]

    def _group(self, members: list[int]) -> SequenceGroup:
        lens = [self.plan.query_lens[m] for m in members]
        width = max(lens)
        real = self._rows_of(members)
        start, end = real[0], real[-1] + 1
        rows = kept = None
        if min(lens) < width:
            # Padding repeats a sequence's last query: finite, and dropped afterwards.
            padded = [self._starts[m] + min(i, n - 1) for m, n in zip(members, lens, strict=True)
                      for i in range(width)]  # fmt: skip
            real_positions = [b * width + i for b, n in enumerate(lens) for i in range(n)]
            rows = torch.tensor(padded, device=self.device)
            kept = torch.tensor(real_positions, device=self.device)
        elif real != list(range(start, end)):
            rows = torch.tensor(real, device=self.device)
        return SequenceGroup(members, width, start, end, rows, kept)

    def rotation(
        self, embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A model's rotary (cos, sin) [1, T, dim] as factors of x and of x rolled by half its
        width, [T, 1, dim] each; made once for all layers that share the embeddings."""
        found = self._rotations.get(id(embeddings[0]))
        if found is None:
            cosine, sine = embeddings[0][0, :, None], embeddings[1][0, :, None].clone()
            sine[..., : sine.shape[-1] // 2].neg_()
            # Keeping `embeddings` alive keeps its id from being taken by another tensor.
            found = self._rotations[id(embeddings[0])] = (cosine, sine, embeddings)
        return found[0], found[1]

    def key_range(self, group: SequenceGroup, window: int | None) -> KeyRange:
        """The group's keys under a sliding window; built at the first layer that asks."""
        found = group.ranges.get(window)
        if found is None:
            found = group.ranges[window] = self._build_range(group, window)
        return found

    def _build_range(self, group: SequenceGroup, window: int | None) -> KeyRange:
        plan, size = self.plan, self.pool.block_size
        lens = torch.tensor([plan.query_lens[m] for m in group.members])
        ends = torch.tensor([plan.context_lens[m] for m in group.members])
        first_query = ends - lens
        first_block = torch.zeros_like(ends)
        if window is not None:
            first_block = (first_query - window + 1).clamp(min=0) // size
        num_blocks = (-(-ends // size) - first_block).tolist()
        blocks: list[int] = []
        for m, first, count in zip(group.members, first_block.tolist(), num_blocks, strict=True):
            table = plan.block_tables[m][first : first + count]
            # Padding repeats the sequence's own block: no other sequence's numbers are read.
            blocks += table + table[-1:] * (max(num_blocks) - count)
        num_keys = max(num_blocks) * size
        if len(group.members) == 1:
            num_keys = int(ends[0]) - int(first_block[0]) * size
        block_ids = torch.tensor(blocks, device=self.device)
        if len(group.members) == 1 and _is_plain(lens, ends, first_block, window):
            return KeyRange(block_ids, num_keys, None, is_causal=int(lens[0]) > 1)
        mask = _mask(lens, ends, first_block * size, group.max_query, num_keys, window)
        dtype = self.pool.layers[0].dtype
        return KeyRange(block_ids, num_keys, mask.to(self.device, dtype), is_causal=False)


def _starts(query_lens: list[int]) -> list[int]:
    starts, total = [], 0
    for length in query_lens:
        starts.append(total)
        total += length
    return starts


def _buckets(plan: StepPlan, block_size: int) -> list[list[int]]:
    """Indices of sequences that share one attention call, in a deterministic order."""
    buckets: dict[tuple[str, int], list[int]] = {}
    for index, (query, context) in enumerate(zip(plan.query_lens, plan.context_lens, strict=True)):
        num_blocks = max(-(-context // block_size), MIN_BLOCK_BUCKET)
        short = query <= MAX_BATCHED_QUERY
        key = ("batch", (num_blocks - 1).bit_length()) if short else ("alone", index)
        buckets.setdefault(key, []).append(index)
    return list(buckets.values())


def _is_plain(
    lens: torch.Tensor, ends: torch.Tensor, first_block: torch.Tensor, window: int | None
) -> bool:
    """Whether a lone sequence needs no mask: one query that sees every gathered key, or a whole
    prompt under plain causality."""
    query, end = int(lens[0]), int(ends[0])
    if window is not None and end > window:
        return False
    return int(first_block[0]) == 0 and query in (1, end)


def _mask(
    lens: torch.Tensor,
    ends: torch.Tensor,
    first_key: torch.Tensor,
    width: int,
    num_keys: int,
    window: int | None,
) -> torch.Tensor:
    """Additive causal mask [B, 1, width, num_keys] in float32: 0 where visible, else -inf.

    Padding queries stand at the last real query's position, so that no row is fully masked.
    """
    steps = torch.arange(width)[None, :].minimum(lens[:, None] - 1)
    queries = (ends - lens)[:, None] + steps
    keys = first_key[:, None] + torch.arange(num_keys)[None, :]
    visible = keys[:, None, :] <= queries[:, :, None]
    if window is not None:
        visible &= keys[:, None, :] > queries[:, :, None] - window
    mask = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    return mask[:, None]


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
        layer = _layer_index(module)
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


def _layer_index(module: torch.nn.Module) -> int:
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
    assert isinstance(step, StepContext), "paged attention runs only inside ModelRunner"
    layer = _layer_index(module)
    num_tokens = query.shape[2]
    rows = torch.cat(
        (
            key[0].transpose(0, 1).reshape(num_tokens, -1),
            value[0].transpose(0, 1).reshape(num_tokens, -1),
        ),
        dim=1,
    )
    step.pool.write(layer, step.slots, rows)
    output = attend(step, layer, query[0].transpose(0, 1).contiguous())
    return output.view(1, num_tokens, query.shape[1], -1), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
