"""Faster modules for CPU, put in place of a loaded model's own.

On CPU a decode step is mostly the overhead of small operators. Recognised by structure, not by
name: RMS norms, gated MLPs, and attention with rotary embeddings become modules with fewer, larger
operators. Each replacement must reproduce the original's output on random input, or the original
stays. Knows module trees and attention; nothing of steps beyond `StepContext`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from specdec.kvcache.kv_pool import KVPool
from specdec.model.attention import attend
from specdec.model.attention_probe import LayerAttention
from specdec.model.linear import is_packable, make_linear
from specdec.model.step_context import StepContext
from specdec.step_plan import StepPlan

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4
_PROBE_ROWS = 5
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class FusedRMSNorm(nn.Module):
    """Root-mean-square norm with a plain weight (offsets such as Gemma's are added to it)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, self.weight.shape, self.weight, self.eps)


class FusedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up: nn.Module = _concatenate([mlp.gate_proj, mlp.up_proj])
        self.down: nn.Module = mlp.down_proj
        self.activation = mlp.act_fn
        self.width: int = mlp.gate_proj.out_features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        both = self.gate_up(rows)
        gated = self.activation(both[..., : self.width]).mul_(both[..., self.width :])
        output: torch.Tensor = self.down(gated)
        return output


class FusedAttention(nn.Module):
    """Projections in one product, one rotation of queries and keys together, keys and values
    written to the pool as they lie."""

    def __init__(self, attention: Any, layer: LayerAttention) -> None:
        super().__init__()
        self.layer_idx: int = attention.layer_idx
        self.qkv: nn.Module = _concatenate([getattr(attention, name) for name in _PROJECTIONS[:3]])
        self.output: nn.Module = attention.o_proj
        self.dim = layer.kv.key_dim
        self.num_heads = layer.num_heads
        self.num_rotated = layer.num_heads + layer.kv.num_kv_heads
        self.query_norm = getattr(attention, "q_norm", None)
        self.key_norm = getattr(attention, "k_norm", None)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        specdec_step: StepContext,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        rows = self.qkv(hidden_states[0])
        num_tokens = rows.shape[0]
        rotated = rows.view(num_tokens, -1, self.dim)[:, : self.num_rotated]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
            query.copy_(self.query_norm(query))
            key.copy_(self.key_norm(key))
        cosine, sine = specdec_step.rotation(position_embeddings)
        turned = rotated.roll(self.dim // 2, -1)
        rotated.mul_(cosine).addcmul_(turned, sine)
        specdec_step.pool.write(
            self.layer_idx, specdec_step.slots, rows[:, self.num_heads * self.dim :]
        )
        output = attend(specdec_step, self.layer_idx, rotated[:, : self.num_heads])
        return self.output(output)[None], None


def _concatenate(layers: list[Any]) -> nn.Linear:
    """One linear layer that computes several, output after output."""
    weight = torch.cat([layer.weight for layer in layers])
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias for layer in layers])
        joined.bias = nn.Parameter(bias, requires_grad=False)
    return joined


def optimize_for_cpu(model: nn.Module, layers: list[LayerAttention], quantization: str) -> None:
    """Replace what can be replaced, in place. The model is float32 or bfloat16, on one rank."""
    _replace(model, _fuse_norm)
    _replace(model, _fuse_mlp)
    _replace(model, lambda module: _fuse_attention(module, layers))
    if quantization == "int8" or is_packable(next(model.parameters()).dtype):
        _replace(model, lambda module: _pack(module, quantization))
        for parameter in model.parameters():
            # What is left (embeddings, norms) may be views into the checkpoint's memory map,
            # which they would keep resident as a whole.
            parameter.data = parameter.data.clone()


def _replace(model: nn.Module, replace: Callable[[nn.Module], nn.Module | None]) -> None:
    """Swap every module for which `replace` returns another; one instance, one replacement."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            found = replace(child)
            if found is not None:
                setattr(parent, name, found)


def _agrees(
    original: nn.Module, fused: nn.Module, run: Callable[[nn.Module], torch.Tensor]
) -> bool:
    """Whether both give the same on a probe; an original that cannot be called so does not."""
    try:
        expected, actual = run(original).float(), run(fused).float()
    except Exception as error:
        logger.info("%s is not replaced: %s", type(original).__name__, error)
        return False
    tolerance = _TOLERANCE if next(fused.parameters()).dtype == torch.float32 else 3e-2
    agree = expected.shape == actual.shape and torch.allclose(
        actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )
    if not agree:
        logger.info("%s is not replaced: its results differ", type(original).__name__)
    return agree


def _probe_rows(width: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, _PROBE_ROWS, width, generator=generator).to(like)


def _fuse_norm(module: Any) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or weight is None or eps is None:
        return None
    for offset in (0.0, 1.0):
        fused = FusedRMSNorm(weight.detach() + offset, float(eps))
        if _agrees(module, fused, lambda m: m(_probe_rows(weight.shape[0], weight))):
            return fused
    return None


def _fuse_mlp(module: Any) -> nn.Module | None:
    names = ("gate_proj", "up_proj", "down_proj")
    if not _has_linears(module, names) or not callable(getattr(module, "act_fn", None)):
        return None
    fused = FusedMLP(module)
    weight = module.gate_proj.weight
    if not _agrees(module, fused, lambda m: m(_probe_rows(weight.shape[1], weight))):
        return None
    return fused


def _has_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether all are plain linear layers, the joined ones alike in having a bias or not."""
    linears = [getattr(module, name, None) for name in names]
    if not all(type(linear) is nn.Linear for linear in linears):
        return False
    return len({linear.bias is None for linear in linears[:-1]}) == 1  # type: ignore[union-attr]


def _fuse_attention(module: Any, layers: list[LayerAttention]) -> nn.Module | None:
    if not _has_linears(module, _PROJECTIONS) or not hasattr(module, "layer_idx"):
        return None
    layer = layers[module.layer_idx]
    if layer.kv.key_dim != layer.kv.value_dim:
        return None
    fused = FusedAttention(module, layer)
    if not _agrees(module, fused, lambda m: _run_attention(m, module.q_proj.weight, layers)):
        return None
    return fused


def _run_attention(module: Any, weight: torch.Tensor, layers: list[LayerAttention]) -> torch.Tensor:
    """One attention module over a chunk of a sequence, on a throw-away pool. `weight` gives the
    hidden size and the type."""
    plan = StepPlan()
    plan.add([0] * _PROBE_ROWS, 0, [0], _PROBE_ROWS, 0)
    layer = layers[module.layer_idx]
    specs = [layer.kv] * (module.layer_idx + 1)
    pool = KVPool(specs, 1, _PROBE_ROWS, weight.dtype, weight.device)
    angles = _probe_rows(layer.kv.key_dim // 2, weight)
    angles = torch.cat((angles, angles), dim=-1)
    output: torch.Tensor = module(
        hidden_states=_probe_rows(weight.shape[1], weight),
        position_embeddings=(angles.cos(), angles.sin()),
        attention_mask=None,
        position_ids=torch.arange(_PROBE_ROWS)[None],
        specdec_step=StepContext(plan, pool, layers, weight.device),
    )[0]
    return output


def _pack(module: Any, quantization: str) -> nn.Module | None:
    if type(module) is not nn.Linear:
        return None
    return make_linear(module.weight, module.bias, quantization)
