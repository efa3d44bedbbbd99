"""The attention kernels that exist, and which one a model gets on a device.

`gather_sdpa` works everywhere and is the tested reference. `gather_varlen` is the CUDA path: the
keys of all sequences are gathered into one contiguous run and attended in a single call of
torch's variable-length kernel. It has never run on a GPU: its indices are tested against a
reference kernel on CPU, its speed and the real kernel are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec.kvcache.kv_pool import KVPool
from specdec.step_plan import StepPlan

if TYPE_CHECKING:
    from specdec.model.attention_probe import LayerAttention

GATHER_SDPA = "gather_sdpa"
GATHER_VARLEN = "gather_varlen"

# The largest head that FlashAttention's variable-length kernels take.
_MAX_VARLEN_HEAD = 256


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """An attention backend, why it was chosen, and the KV block sizes that it can read."""

    name: str
    reason: str
    block_sizes: str = "any"


def choose_attention_backend(
    device: torch.device, dtype: torch.dtype, layers: list[LayerAttention] | None = None
) -> BackendChoice:
    """The backend for a model's layers on a device; `layers` None where no model is loaded yet."""
    if device.type != "cuda":
        return BackendChoice(GATHER_SDPA, "scaled_dot_product_attention over gathered blocks")
    if dtype not in (torch.float16, torch.bfloat16):
        return BackendChoice(GATHER_SDPA, f"torch's varlen kernel does not take {dtype}")
    for layer in layers or []:
        if layer.softcap is not None:
            return BackendChoice(GATHER_SDPA, "the model caps attention logits")
        if layer.kv.key_dim != layer.kv.value_dim:
            return BackendChoice(GATHER_SDPA, "keys and values differ in size")
        if layer.kv.key_dim > _MAX_VARLEN_HEAD:
            return BackendChoice(GATHER_SDPA, f"heads wider than {_MAX_VARLEN_HEAD}")
    return BackendChoice(GATHER_VARLEN, "torch.nn.attention.varlen over gathered keys; untested")


class VarlenKeys:
    """One step's index tensors for the variable-length kernel, shared by all layers."""

    def __init__(self, plan: StepPlan, block_size: int, device: torch.device) -> None:
        contexts = torch.tensor(plan.context_lens)
        blocks = torch.tensor([b for table in plan.block_tables for b in table])
        slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
        # Every sequence's blocks are whole in `slots`; keep the slots inside its context.
        held = torch.tensor([len(table) * block_size for table in plan.block_tables])
        starts = torch.repeat_interleave(held.cumsum(0) - held, held)
        inside = torch.arange(len(slots)) - starts < torch.repeat_interleave(contexts, held)
        self.slots = slots[inside].to(device)
        self.query_ends = _cumulative(plan.query_lens).to(device)
        self.key_ends = _cumulative(plan.context_lens).to(device)
        self.max_query = max(plan.query_lens)
        self.max_key = max(plan.context_lens)

    def attend(
        self, pool: KVPool, layer: int, spec: LayerAttention, query: torch.Tensor
    ) -> torch.Tensor:
        """query [T, heads, dim] -> [T, heads * dim]; causal, queries at the end of their keys."""
        from torch.nn.attention.varlen import varlen_attn

        rows = pool.layers[layer].index_select(0, self.slots)
        key, value = rows.split_with_sizes((spec.kv.key_size, spec.kv.value_size), -1)
        shape = (len(rows), spec.kv.num_kv_heads, -1)
        output = varlen_attn(
            query.contiguous(),
            key.view(shape),
            value.view(shape),
            self.query_ends,
            self.key_ends,
            self.max_query,
            self.max_key,
            scale=spec.scaling,
            # The kernel counts the keys before the query, our window the query's own key too.
            window_size=(-1 if spec.window is None else spec.window - 1, 0),
            enable_gqa=spec.num_heads != spec.kv.num_kv_heads,
        )
        assert isinstance(output, torch.Tensor)
        return output.reshape(len(query), -1)


def _cumulative(lens: list[int]) -> torch.Tensor:
    """[0, lens[0], lens[0] + lens[1], ...] in int32, as the kernel wants it."""
    return torch.tensor([0, *lens]).cumsum(0).to(torch.int32)
