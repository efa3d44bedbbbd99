"""What an engine has done so far, as plain monotonic counters, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineCounters:
    """Totals since start. A draft is one sequence's verify pass over >= 1 draft token."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)
    disabled: Counter[str] = field(default_factory=Counter)
    steps_by_k: Counter[int] = field(default_factory=Counter)

    def record_verify(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        """Count one sequence's decode step."""
        self.steps_by_k[num_drafted] += 1
        if num_drafted == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.num_emitted_accepted_tokens += num_emitted
        missing = num_drafted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * max(0, missing))
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1


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
