"""The lengths at which a model may begin to compute something else, as its configuration names
them: windows, chunks, original contexts and the like.

Which of them matter is not known here: every number under a name that speaks of lengths counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from transformers import PreTrainedConfig

from specdec.model.attention_probe import LayerAttention

_LENGTH = re.compile(
    "window|chunk|position|length|seq_len|context|threshold|floor_scale|topk|block_size"
)
_ROTARY = re.compile("^rope_|rotary")


def named_lengths(
    config: PreTrainedConfig, layers: Iterable[LayerAttention], max_len: int
) -> list[int]:
    """Ascending, each at least 2 and at most `max_len`; the layers' windows are among them."""
    found = {layer.window for layer in layers if layer.window is not None}
    found.update(_lengths(config.to_dict()))
    return sorted(length for length in found if 2 <= length <= max_len)


def positions_around(lengths: Iterable[int], max_len: int) -> list[int]:
    """The first positions, and those around each length, its double and its triple."""
    around = {
        times * length + offset for length in lengths for times in (1, 2, 3) for offset in (-1, 0)
    }
    return sorted(position for position in around | set(range(6)) if 0 <= position < max_len)


def _lengths(settings: dict[str, Any], all_count: bool = False) -> Iterator[int]:
    for name, value in settings.items():
        counts = all_count or _LENGTH.search(str(name)) is not None
        if isinstance(value, dict):
            yield from _lengths(value, all_count or _ROTARY.search(str(name)) is not None)
        elif counts and isinstance(value, int | float) and not isinstance(value, bool):
            yield int(value) if abs(value) < 2**31 else 0
