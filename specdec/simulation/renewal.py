"""Tokens per round along recorded or drawn texts, for one K after the other."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from specdec.simulation.requests import SimulatedRequest


def tokens_per_round(requests: SequenceOf[SimulatedRequest], drafter: str, k: int) -> float:
    """Mean tokens that a round with K = `k` commits, the target's own token included: all tokens of
    the texts over all rounds that they take."""
    if k == 0:
        return 1.0
    num_tokens = num_rounds = 0
    for request in requests:
        acceptable = request.acceptable[drafter].tolist()
        position = 0
        while position < len(acceptable):
            position += min(acceptable[position], k) + 1
            num_rounds += 1
        num_tokens += len(acceptable)
    return num_tokens / num_rounds
