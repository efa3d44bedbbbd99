"""Readings as numbers by time series, and nothing of what they are read from: the actor that keeps
the fleet's ledger takes them in without an engine and torch.
"""

from __future__ import annotations

from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]


class Key(NamedTuple):
    """One time series: `family` + `suffix` is its name; labels without the model's."""

    family: str
    suffix: str = ""
    labels: Labels = ()


Samples = dict[Key, float]
