"""One step's index tensors and masks, built once and used by every attention layer.

Decides which sequences share an attention call: short queries of similar context length in one
padded batch, prefill chunks one by one. Knows block tables; nothing of models or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from specdec.kvcache.kv_pool import KVPool
from specdec.model.attention_backend import GATHER_SDPA, GATHER_VARLEN, VarlenKeys
from specdec.model.attention_probe import LayerAttention
from specdec.step_plan import StepPlan

# Queries up to this length (a decode token and its draft tokens) share padded batches.
MAX_BATCHED_QUERY = 16
# Contexts of up to this many blocks share a batch whatever their length; longer ones only with
# contexts of the same power of two, so that padding at most doubles the work.
MIN_BLOCK_BUCKET = 16


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


class Rotations:
    """Rotary embeddings as factors, made once for all layers that share them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor, object]] = {}

    def of(
        self, embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A model's rotary (cos, sin) [1, T, dim] as factors of x and of x rolled by half its
        width, [T, 1, dim] each."""
        found = self._made.get(id(embeddings[0]))
        if found is None:
            cosine, sine = embeddings[0][0, :, None], embeddings[1][0, :, None].clone()
            sine[..., : sine.shape[-1] // 2].neg_()
            # Keeping `embeddings` alive keeps its id from being taken by another tensor.
            found = self._made[id(embeddings[0])] = (cosine, sine, embeddings)
        return found[0], found[1]


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
        if unwritten := _unwritten_slots(plan, pool.block_size):
            pool.clear(torch.tensor(unwritten, device=device))
        self._starts = _starts(plan.query_lens)
        self.rotation = Rotations().of
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


def _unwritten_slots(plan: StepPlan, block_size: int) -> list[int]:
    """Slots behind the text in the blocks that this step begins. Another sequence's numbers are
    left there, and where those were NaN no mask would keep them out."""
    slots: list[int] = []
    for query, end, table in zip(
        plan.query_lens, plan.context_lens, plan.block_tables, strict=True
    ):
        used = end % block_size
        if 0 < used <= query:
            start = table[-1] * block_size
            slots.extend(range(start + used, start + block_size))
    return slots


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
