"""Faster modules for CPU, put in place of a loaded model's own.

On CPU a decode step is mostly the overhead of small operators. Recognised by structure, not by
name: RMS norms, gated MLPs, and attention with rotary embeddings become modules with fewer, larger
operators. Each replacement must reproduce the original in the calls that the model itself made of
it, at positions around every length that the configuration names, with the model's own numbers
and with far larger and smaller ones; else the original stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from specdec.errors import ConfigError
from specdec.model.attention import write_and_attend
from specdec.model.attention_probe import LayerAttention
from specdec.model.difference import row_errors
from specdec.model.linear import excess_error, is_packable, make_linear
from specdec.model.module_calls import ModuleCall, ModuleCalls
from specdec.model.projections import ProjectionProbe
from specdec.model.step_context import StepContext

logger = logging.getLogger(__name__)

# Root mean square of a row's difference, relative to the row.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 2e-2
# Inputs are tried times these: an epsilon shows below the usual size, a clip far above it.
_FACTORS = (1e-3, 1.0, 1e3)
_HALF_FACTORS = (0.1, 1.0, 8.0)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


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
        specdec_step: StepContext | ProjectionProbe,
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
        output = write_and_attend(
            specdec_step,
            self.layer_idx,
            rotated[:, : self.num_heads],
            rows[:, self.num_heads * self.dim :],
        )
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


def replaceable(model: nn.Module) -> list[nn.Module]:
    """The modules whose calls `fuse_modules` wants to see."""
    return [m for m in model.modules() if _is_norm(m) or _is_mlp(m) or _is_attention(m)]


def fuse_modules(model: nn.Module, layers: list[LayerAttention], calls: ModuleCalls) -> None:
    """Replace what can be replaced, in place. The model is on one rank, on CPU."""
    _replace(model, lambda module: _fuse_norm(module, calls))
    _replace(model, lambda module: _fuse_mlp(module, calls))
    _replace(model, lambda module: _fuse_attention(module, layers, calls))


def pack_linears(model: nn.Module, quantization: str, calls: ModuleCalls) -> None:
    """Lay the weights of linear layers out anew, in place, where nothing else reads them.

    Raises ConfigError where int8 is wrong by more than its rounding on this CPU, naming the layer;
    a packed layer of that kind keeps its original.
    """
    if quantization != "int8" and not is_packable(next(model.parameters()).dtype):
        return
    own = {id(linear) for linear in _joined(model)}
    names = {id(module): name for name, module in model.named_modules()}

    def pack(module: nn.Module) -> nn.Module | None:
        if type(module) is not nn.Linear:
            return None
        if id(module) not in own and not calls.is_only_called(module):
            return None
        return _packed(module, names[id(module)], quantization)

    _replace(model, pack)
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
    original: nn.Module,
    fused: nn.Module,
    call: ModuleCall,
    run: Callable[[nn.Module, ModuleCall], list[torch.Tensor]],
) -> bool:
    """Whether both give the same wherever they are tried; one that cannot be called does not."""
    dtype = next(fused.parameters()).dtype
    tolerance = _TOLERANCE if dtype == torch.float32 else _HALF_TOLERANCE
    for factor in _HALF_FACTORS if dtype == torch.float16 else _FACTORS:
        try:
            expected = run(original, call.scaled(factor))
            actual = run(fused, call.scaled(factor))
        except Exception as error:
            logger.info("%s is not replaced: %s", type(original).__name__, error)
            return False
        errors = [float(row_errors(a, e).max()) for a, e in zip(actual, expected, strict=True)]
        if not max(errors) <= tolerance:
            logger.info("%s is not replaced: off by %.2g", type(original).__name__, max(errors))
            return False
    return True


def _output(module: nn.Module, call: ModuleCall) -> list[torch.Tensor]:
    return [module(*call.positional, **call.named)]


def _is_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        "RMSNorm" in type(module).__name__
        and isinstance(weight, torch.Tensor)
        and weight.ndim == 1
        and _epsilon(module) is not None
    )


def _epsilon(module: Any) -> float | None:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _fuse_norm(module: Any, calls: ModuleCalls) -> nn.Module | None:
    call = calls.of(module)
    if call is None or not _is_norm(module):
        return None
    for offset in (0.0, 1.0):
        fused = FusedRMSNorm(module.weight.detach() + offset, float(_epsilon(module) or 0.0))
        if _agrees(module, fused, call, _output):
            return fused
    return None


def _is_mlp(module: Any) -> bool:
    return _has_linears(module, _MLP) and callable(getattr(module, "act_fn", None))


def _fuse_mlp(module: Any, calls: ModuleCalls) -> nn.Module | None:
    call = calls.of(module)
    if call is None or not _is_mlp(module) or not _are_only_called(module, _MLP, calls):
        return None
    fused = FusedMLP(module)
    return fused if _agrees(module, fused, call, _output) else None


def _has_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether all are plain linear layers, the joined ones alike in having a bias or not."""
    linears = [getattr(module, name, None) for name in names]
    if not all(type(linear) is nn.Linear for linear in linears):
        return False
    return len({linear.bias is None for linear in linears[:-1]}) == 1  # type: ignore[union-attr]


def _are_only_called(module: nn.Module, names: tuple[str, ...], calls: ModuleCalls) -> bool:
    return all(calls.is_only_called(getattr(module, name)) for name in names)


def _is_attention(module: Any) -> bool:
    return _has_linears(module, _PROJECTIONS) and hasattr(module, "layer_idx")


def _fuse_attention(
    module: Any, layers: list[LayerAttention], calls: ModuleCalls
) -> nn.Module | None:
    call = calls.of(module)
    if call is None or not _is_attention(module):
        return None
    layer = layers[module.layer_idx]
    if layer.kv.key_dim != layer.kv.value_dim or not _are_only_called(module, _PROJECTIONS, calls):
        return None

    def run(attention: Any, call: ModuleCall) -> list[torch.Tensor]:
        probe = ProjectionProbe(layers)
        output = attention(*call.positional, **{**call.named, "specdec_step": probe})[0]
        return [output, *probe.written[module.layer_idx]]

    fused = FusedAttention(module, layer)
    return fused if _agrees(module, fused, call, run) else None


def _joined(model: nn.Module) -> list[nn.Module]:
    """The linear layers that replaced modules have made: nobody else knows of them."""
    made = [m.gate_up for m in model.modules() if isinstance(m, FusedMLP)]
    return made + [m.qkv for m in model.modules() if isinstance(m, FusedAttention)]


def _packed(linear: nn.Linear, name: str, quantization: str) -> nn.Module | None:
    packed = make_linear(linear.weight, linear.bias, quantization)
    excess = excess_error(packed, linear.weight, linear.bias)
    if excess <= 1:
        return packed
    if quantization == "int8":
        raise ConfigError(
            f"int8 is wrong on this CPU: layer {name} is off by {excess:.2g} times what its "
            "rounding explains",
            field="quantization",
        )
    logger.warning("%s is not packed: off by %.2g times what is allowed", name, excess)
    return None
