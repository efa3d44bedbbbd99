"""Packed linear layers: close to nn.Linear, and int8 rows independent of their neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specdec.model.linear import Int8Linear, PackedLinear, excess_error, is_packable


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)


def spread_rows(count: int, width: int) -> torch.Tensor:
    """Rows of very different magnitudes, with outliers, as activations have them."""
    rows = torch.randn(count, width) * torch.logspace(-3, 3, count)[:, None]
    rows[:, 5] *= 40
    return rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5, 33])
def test_packed_float32_is_close_to_linear(bias: bool, count: int) -> None:
    linear = nn.Linear(48, 70, bias=bias)
    packed = PackedLinear(linear.weight, linear.bias)
    rows = torch.randn(count, 48)
    torch.testing.assert_close(packed(rows), linear(rows), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(
    not is_packable(torch.bfloat16), reason="oneDNN packs no bfloat16 without AVX-512"
)
def test_packed_bfloat16_is_close_to_linear() -> None:
    linear = nn.Linear(48, 70).bfloat16()
    packed = PackedLinear(linear.weight, linear.bias)
    rows = torch.randn(3, 48).bfloat16()
    torch.testing.assert_close(packed(rows), linear(rows), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("width", "out"), [(64, 96), (576, 960), (70, 33)])
@pytest.mark.parametrize("bias", [False, True])
def test_int8_row_alone_equals_row_among_others_bitwise(width: int, out: int, bias: bool) -> None:
    linear = nn.Linear(width, out, bias=bias)
    quantized = Int8Linear(linear.weight, linear.bias)
    rows = spread_rows(8, width)
    together = quantized(rows)
    for count in (1, 2, 3, 5):
        for start in range(8 - count + 1):
            apart = quantized(rows[start : start + count])
            assert torch.equal(apart, together[start : start + count])


def test_int8_error_is_bounded_by_its_quantisation_steps() -> None:
    """|error| <= sum over inputs of the two rounding errors: half a step each, weight scales per
    output channel and activation scales per row."""
    linear = nn.Linear(64, 40, bias=False)
    rows = spread_rows(8, 64)
    # Activations have seven bits where a CPU adds products in 16.
    steps = 127 if torch.cpu._is_vnni_supported() else 63
    row_step = rows.abs().amax(1, keepdim=True) / steps
    weight_step = linear.weight.abs().amax(1) / 127
    bound = (
        rows.abs().sum(1, keepdim=True) * weight_step / 2
        + row_step / 2 * linear.weight.abs().sum(1)
        + 64 * row_step * weight_step / 4
    )
    error = (Int8Linear(linear.weight, None)(rows) - linear(rows)).abs()
    assert bool((error <= bound * 1.001).all())
    assert float(error.max()) > 0


def test_int8_zero_row_is_zero_and_finite() -> None:
    linear = nn.Linear(16, 8, bias=False)
    rows = torch.zeros(3, 16)
    rows[1] = 1.0
    product = Int8Linear(linear.weight, None)(rows)
    assert torch.equal(product[0], torch.zeros(8))
    assert torch.equal(product[2], torch.zeros(8))
    assert bool(product[1].abs().sum() > 0)


def test_int8_zero_output_channel() -> None:
    weight = torch.randn(8, 16)
    weight[3] = 0
    product = Int8Linear(weight, None)(torch.randn(2, 16))
    assert torch.equal(product[:, 3], torch.zeros(2))
    assert bool(product.isfinite().all())


def test_int8_does_not_saturate() -> None:
    """All products of one sign and the largest size: kernels that add pairs in 16 bits cut them."""
    product = Int8Linear(torch.ones(40, 64), None)(torch.ones(2, 64))
    torch.testing.assert_close(product, torch.full((2, 40), 64.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", [PackedLinear, Int8Linear])
@pytest.mark.parametrize("width", [16, 576, 3072])
def test_sound_layers_are_within_what_is_allowed(
    kind: type[PackedLinear | Int8Linear], width: int
) -> None:
    linear = nn.Linear(width, 70).requires_grad_(False)
    linear.weight.data[:, 3] *= 30
    assert excess_error(kind(linear.weight, linear.bias), linear.weight, linear.bias) < 1


@pytest.mark.parametrize("width", [64, 576, 3072])
def test_saturated_products_are_found(width: int) -> None:
    """What a zero point of 128 gave without VNNI: the sum of each pair of products cut at 16 bits,
    an error of six to nine per cent."""
    linear = nn.Linear(width, 70, bias=False).requires_grad_(False)
    sound = Int8Linear(linear.weight, None)
    steps = linear.weight.abs().amax(1, keepdim=True) / 127
    integers = (linear.weight / steps).round()

    def saturating(rows: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().amax(1, keepdim=True) / 63
        shifted = (rows / scale).round() + 128
        pairs = (shifted[:, None] * integers).unflatten(2, (-1, 2)).sum(3)
        total = pairs.clamp(-32768, 32767).sum(2) - 128 * integers.sum(1)
        return total * scale * steps[:, 0]

    sound.forward = saturating  # type: ignore[method-assign]
    assert excess_error(sound, linear.weight, None) > 1.2


def test_a_transposed_layout_is_found() -> None:
    linear = nn.Linear(32, 32).requires_grad_(False)
    packed = PackedLinear(linear.weight.t().contiguous(), linear.bias)
    assert excess_error(packed, linear.weight, linear.bias) > 100


def test_numbers_that_are_not_finite_are_not_compared() -> None:
    linear = nn.Linear(32, 16).requires_grad_(False)
    linear.weight.data[3] = torch.nan
    packed = PackedLinear(linear.weight, linear.bias)
    assert excess_error(packed, linear.weight, linear.bias) <= 1
