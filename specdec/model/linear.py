"""Linear layers for CPU: weights packed once at start, in float or in dynamic int8.

torch's own linear layer re-lays its weight out on every call, so that four rows cost nearly three
times one row; packed, they cost little more than one, which is what makes verifying several draft
tokens in one pass worth while.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn

from specdec.errors import ConfigError

# The number of rows that the packed layout is tuned for: a token and four draft tokens. With it
# one or two rows take longer than four (measured: 23 against 15 ms for 30 layers of 576 x 3072).
_PACKED_FOR_ROWS = 5
_FEWEST_ROWS = 4
_SMALLEST_SCALE = 1e-30
# Rounding errors of int8 that all have the worst size, not the mean one, are 1.7 times as long;
# where there are few of them, chance makes them longer.
_ALLOWED_ROUNDING = 2.0
_PACKED_TOLERANCES = {torch.float32: 1e-4}
_HALF_TOLERANCE = 2e-2


def is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of this type here."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(nn.Module):
    """A linear layer whose weight is kept only in oneDNN's own layout.

    A row's result may differ in the last bits with the number of rows beside it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR_ROWS)
        self._bias = None if bias is None else bias.detach().clone()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [..., in_features] -> [..., out_features]"""
        count = rows.shape[-2]
        if count < _FEWEST_ROWS:
            return self._product(F.pad(rows, (0, 0, 0, _FEWEST_ROWS - count)))[..., :count, :]
        return self._product(rows)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return packed


class Int8Linear(nn.Module):
    """A linear layer in int8: weights with a scale per output channel, activations with a scale
    per row, found anew on every call.

    Each row is divided by its own absolute maximum, so that one constant scale fits all rows.
    The integer products are exact and everything else works row by row: a row gives the same
    bits alone as among others, whatever K is.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed = _pack_int8(weight.detach().float())
        self._bias = None if bias is None else bias.detach().float()
        # Without VNNI fbgemm's kernel adds pairs of products in 16 bits and saturates. Activations
        # are unsigned there, so that it is the zero point, too, that must keep within 7 bits:
        # 2 * 127 * 127 fits.
        is_wide = torch.cpu._is_vnni_supported()
        self._scale, self._zero_point = (1 / 127, 128) if is_wide else (1 / 63, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [..., in_features] float32 -> [..., out_features] float32"""
        scale = rows.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST_SCALE)
        product: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows / scale, self._scale, self._zero_point, self._packed
        )
        product.mul_(scale)
        return product if self._bias is None else product.add_(self._bias)

    def expected_errors(self, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[rows] the length of the error that rounding leaves in each row's outputs: weights and
        activations are off by up to half a step each, a twelfth of its square on average."""
        row_steps = (rows.abs().amax(1) * self._scale).square().double() / 12
        weight_steps = (weight.abs().amax(1) / 127).square().double().sum() / 12
        by_weights = rows.square().sum(1).double() * weight_steps
        by_rows = row_steps * weight.square().double().sum()
        by_both = rows.shape[-1] * row_steps * weight_steps
        return (by_weights + by_rows + by_both).sqrt()


def _pack_int8(weight: torch.Tensor) -> torch.ScriptObject:
    """Symmetric int8 weights with one scale per output channel, in fbgemm's layout."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise ConfigError("int8 needs torch's fbgemm engine (x86 CPUs)", field="quantization")
    scale = weight.abs().amax(1).clamp_(min=_SMALLEST_SCALE) / 127
    integers = (weight / scale[:, None]).round_().to(torch.int8)
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # Eager-mode quantized tensors are deprecated; fbgemm's packing still takes nothing else.
        warnings.simplefilter("ignore", UserWarning)
        quantized = torch._make_per_channel_quantized_tensor(
            integers, scale.double(), zero_points, 0
        )
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = engine
    return packed


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, quantization: str
) -> PackedLinear | Int8Linear:
    """The packed replacement of a linear layer; the caller drops the original weight."""
    if quantization == "int8":
        return Int8Linear(weight, bias)
    return PackedLinear(weight, bias)


def excess_error(
    packed: PackedLinear | Int8Linear, weight: torch.Tensor, bias: torch.Tensor | None
) -> float:
    """How far a packed layer is from the product with its original weight on a few rows, in
    multiples of what its arithmetic allows: up to 1 is sound.

    Kernels are chosen by the CPU. One that saturates or reads another layout shows here, and
    nowhere else as soon: its text is still fluent.
    """
    # What is not finite is left as it is everywhere, and says nothing about the arithmetic.
    sound = weight.isfinite().all(1)
    rows = _tried_rows(packed.in_features).to(weight.dtype)
    expected = F.linear(rows, weight, bias)[:, sound].double()
    errors = (packed(rows)[:, sound].double() - expected).norm(dim=1)
    if isinstance(packed, Int8Linear):
        chance = 1 + 2 / max(1, packed.out_features) ** 0.5
        allowed = _ALLOWED_ROUNDING * chance * packed.expected_errors(weight[sound], rows)
    else:
        tolerance = _PACKED_TOLERANCES.get(weight.dtype, _HALF_TOLERANCE)
        allowed = tolerance * expected.norm(dim=1)
    excess = (errors / allowed.clamp(min=_SMALLEST_SCALE)).nan_to_num(nan=torch.inf)
    return float(excess.max())


def _tried_rows(width: int) -> torch.Tensor:
    """Ordinary rows, one with outliers as activations have them, and one of a single sign, in
    which products add up most. [_PACKED_FOR_ROWS, width]"""
    numbers = torch.Generator().manual_seed(width)
    rows = torch.randn(_PACKED_FOR_ROWS, width, generator=numbers)
    rows[1, :: max(1, width // 4)] *= 20
    rows[2] = rows[2].abs()
    return rows
