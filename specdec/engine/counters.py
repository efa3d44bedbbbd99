"""What an engine has done so far, as plain monotonic counters, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specdec.sequence import DraftCounts


@dataclass(slots=True)
class EngineCounters(DraftCounts):
    """Totals of all requests since start."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    disabled: Counter[str] = field(default_factory=Counter)
    steps_by_k: Counter[int] = field(default_factory=Counter)

    def record_verify(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        """Count one sequence's decode step."""
        self.steps_by_k[num_drafted] += 1
        if num_drafted > 0:
            self.count_draft(num_drafted, num_accepted, num_emitted)


@dataclass(slots=True)
class EngineStats:
    """One reading of an engine. `kv_usage` is the used share of blocks, 0 to 1; `controller` holds
    its shadow price, goodput and guard state."""

    counters: EngineCounters
    num_running: int
    num_waiting: int
    num_preemptions: int
    num_prefix_cache_queries: int
    num_prefix_cache_hits: int
    kv_usage: float
    controller: dict[str, float | str]
