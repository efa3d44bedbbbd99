"""K from a table by batch size, as vLLM's `num_speculative_tokens_per_batch_size`.

Knows how many sequences decode; neither acceptance nor time.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from specdec.errors import ConfigError
from specdec.speculation.baselines.base import BatchBaseline
from specdec.speculation.controller.interface import BatchState

# (first batch size, last batch size, K), as in vLLM's page "Dynamic Speculative Decoding".
EAGLE_TABLE = ((1, 64, 3), (65, 128, 1), (129, 512, 0))
EAGLE3_TABLE = ((1, 16, 5), (17, 32, 4), (33, 64, 3), (65, 128, 1), (129, 512, 0))


class TablePolicy(BatchBaseline):
    """vLLM's Dynamic SD: one K for the batch, looked up by the number of decoding sequences.

    vLLM has no built-in table. The default here is the one that its documentation states in the
    schema and for EAGLE; `EAGLE3_TABLE` is its other example. As there, a gap and all batch sizes
    beyond the last range take the K of the range before, and the first range starts at 1.

    Raises ConfigError (field `table`) where ranges overlap, run backwards, leave out batch size 1,
    or where a K is negative.
    """

    name = "vllm"

    def __init__(
        self,
        max_k: int,
        max_wait_s: float,
        table: SequenceOf[tuple[int, int, int]] = EAGLE_TABLE,
    ) -> None:
        super().__init__(max_k, max_wait_s)
        self._table = _checked(table)

    def _k(self, state: BatchState) -> int:
        batch = len(state.sequences)
        return next((k for first, k in reversed(self._table) if batch >= first), 0)


def _checked(table: SequenceOf[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(first batch size, K) of each range; the ends matter for validity only."""
    last_seen = 0
    for first, last, k in table:
        if not last_seen < first <= last or k < 0:
            raise ConfigError(
                f"table: ({first}, {last}, {k}) is not allowed: ranges are (first, last, K) with "
                f"{last_seen} < first <= last, in order, and K >= 0",
                field="table",
            )
        last_seen = last
    if not table or table[0][0] != 1:
        raise ConfigError("table: the first range must start at batch size 1", field="table")
    return [(first, k) for first, _, k in table]
