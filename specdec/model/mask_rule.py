"""Which keys a query sees, read from the mask function that transformers builds for a layer.

Mask functions map indices to a truth value, so that a row far out costs no more than its own
length: nothing is materialised. What is neither causal nor a sliding window is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec.errors import ConfigError

# (batch, head, query, key) -> whether the query sees the key; index tensors that broadcast.
MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Rows are read up to this position; a window that is longer than that is none that we could use.
_FARTHEST = 1 << 20
# Keys behind the query that are looked at, to see that none of them is visible.
_AHEAD = 3


def window_of(rule: MaskFunction, max_len: int) -> int | None:
    """Keys that a query sees, itself included; None where it sees all that came before it.

    Every row around the window and its multiples, and the last one of a context of `max_len`
    tokens, must agree. Raises ConfigError where one does not.
    """
    last = min(max_len, _FARTHEST) - 1
    visible = _row(rule, last)
    width = int(visible.sum())
    window = None if width > last else width
    for query in _queries(width, last):
        keys = torch.arange(query + 1 + _AHEAD)
        expected = keys <= query
        if window is not None:
            expected &= keys > query - window
        if not torch.equal(_row(rule, query), expected):
            raise ConfigError(
                f"its mask is neither causal nor a sliding window (seen at position {query})"
            )
    return window


def _queries(width: int, last: int) -> list[int]:
    """Positions at which a mask that is no sliding window would show it: the first ones, those
    around one to three widths (a chunk ends there), and a spread of others."""
    around = {times * width + offset for times in (1, 2, 3) for offset in range(-3, 4)}
    spread = {last * part // 7 for part in range(8)}
    return sorted(q for q in around | spread | set(range(8)) if 0 <= q <= last)


def _row(rule: MaskFunction, query: int) -> torch.Tensor:
    """[query + 1 + _AHEAD] truth values: which keys the query at this position sees."""
    first = torch.zeros((), dtype=torch.long)
    keys = torch.arange(query + 1 + _AHEAD)
    try:
        seen = rule(first, first, first + query, keys)
    except (IndexError, RuntimeError) as error:
        raise ConfigError(f"its mask depends on more than positions ({error})") from error
    return seen.broadcast_to(keys.shape).bool()
