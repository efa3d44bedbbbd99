"""How far two computations of the same rows are apart."""

from __future__ import annotations

import torch

# Rows that are this much smaller than the largest are measured against it: they hold only noise.
_NEGLIGIBLE = 1e-3


def row_errors(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The length of each row's difference, relative to the row: [rows] in float64, a row being a
    vector of the last dimension. Infinite where shapes differ or a number is not finite."""
    if actual.shape != expected.shape:
        return torch.full((1,), torch.inf, dtype=torch.float64)
    actual = actual.detach().reshape(-1, actual.shape[-1]).double()
    expected = expected.detach().reshape(-1, expected.shape[-1]).double()
    lengths = expected.norm(dim=1)
    scale = lengths.clamp(min=float(lengths.max()) * _NEGLIGIBLE).clamp(min=1e-300)
    errors: torch.Tensor = (actual - expected).norm(dim=1) / scale
    return errors.nan_to_num(nan=torch.inf)
