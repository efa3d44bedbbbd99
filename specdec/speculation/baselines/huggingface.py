"""K by the `heuristic` schedule of transformers' assisted generation.

Knows whether a request's last proposal was accepted whole; neither load nor time.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec.speculation.baselines.base import RequestBaseline

NUM_ASSISTANT_TOKENS = 20


@dataclass(slots=True)
class _Request:
    k: int


class HeuristicPolicy(RequestBaseline[_Request]):
    """K + 2 when all draft tokens were accepted, else K - 1, at least 1; for each request alone.

    From transformers 5.24 (`candidate_generator.py`): `num_assistant_tokens` is 20, and its
    schedule `constant` unless `num_assistant_tokens_schedule` says `heuristic`. That one keeps K
    from one `generate` to the next; since batches there hold one request, ours begin each at the
    start value, as `heuristic_transient` does. The operator's limit bounds K itself, not only what
    is asked for: else it would take 12 misses before a K of 20 fell below a limit of 8. An empty
    proposal changes nothing, as with transformers' prompt lookup.
    """

    name = "hf"

    def _start(self) -> _Request:
        return _Request(min(NUM_ASSISTANT_TOKENS, self._max_k))

    def _k(self, request: _Request) -> int:
        return request.k

    def _update(self, request: _Request, num_drafted: int, num_accepted: int) -> None:
        if num_accepted == num_drafted:
            request.k = min(request.k + 2, self._max_k)
        else:
            request.k = max(request.k - 1, 1)
