"""What an engine has done so far, as plain monotonic counters and histograms, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specdec.engine.class_counters import ClassCounters
from specdec.engine.histogram import STEP_EDGES, Histogram, Histograms
from specdec.sequence import DraftCounts, RequestMetrics, Sequence
from specdec.speculation.controller import StepResult


def _step_histogram() -> Histogram:
    return Histogram(STEP_EDGES)


@dataclass(slots=True)
class EngineCounters(DraftCounts):
    """Totals of all requests since start. Every output token is counted by where it comes from:
    num_generation_tokens = num_prefill_outputs + decode steps + num_emitted_accepted_tokens
    - num_cut_target_tokens, where the decode steps are the sum of steps_by_k.

    num_requests: those that were answered with a first token at least.
    num_prefill_outputs: tokens that a prefill ended with: the first, and one after each time that
        the text was computed anew.
    num_not_finite: requests ended since the model computed NaN or infinities for them.
    inter_token_latency: from one output of a sequence to the next; an output is a step's tokens.
    time_per_output_token: of a finished request, after its first token.
    step_run, step_wait: the target's part of a step, and what it waited for proposals.
    draft, wire: by drafter, the draft's own time for a round, and what messages took beside it.
    classes: by class, of the requests that name one.
    """

    num_steps: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_prefill_outputs: int = 0
    num_generation_tokens: int = 0
    num_not_finite: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    disabled: Counter[str] = field(default_factory=Counter)
    steps_by_k: Counter[int] = field(default_factory=Counter)
    time_to_first_token: Histogram = field(default_factory=Histogram)
    time_per_output_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    request: Histogram = field(default_factory=Histogram)
    step_run: Histogram = field(default_factory=_step_histogram)
    step_wait: Histogram = field(default_factory=_step_histogram)
    draft: Histograms = field(default_factory=Histograms)
    wire: Histograms = field(default_factory=Histograms)
    classes: ClassCounters = field(default_factory=ClassCounters)

    def record_verify(
        self, num_drafted: int, num_accepted: int, num_kept: int, traffic_class: str | None = None
    ) -> None:
        """Count one sequence's decode step."""
        self.steps_by_k[num_drafted] += 1
        if traffic_class is not None:
            counts = self.classes.of(traffic_class)
            counts.num_steps += 1
            counts.num_draft_tokens += num_drafted
            counts.num_accepted_tokens += num_accepted
        if num_drafted > 0:
            self.count_draft(num_drafted, num_accepted, num_kept)

    def record_output(self, sequence: Sequence, num_kept: int, now_s: float) -> None:
        """Count one step's tokens of a sequence; before its own times are brought up to date."""
        self.num_generation_tokens += num_kept
        if sequence.traffic_class is not None:
            self.classes.of(sequence.traffic_class).num_generation_tokens += num_kept
        if sequence.first_token_s is None:
            self.num_requests += 1
            self.num_prompt_tokens += sequence.num_prompt_tokens
            self.time_to_first_token.observe(now_s - sequence.arrival_s)
        elif sequence.last_token_s is not None:
            self.inter_token_latency.observe(now_s - sequence.last_token_s)

    def record_end(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Count a request's end. Times are of those that came to theirs: neither an abort nor an
        error says how long an answer takes."""
        self.finished[finish_reason] += 1
        if metrics.disabled_reason is not None:
            self.disabled[metrics.disabled_reason] += 1
        if finish_reason in ("stop", "length") and metrics.num_output_tokens > 0:
            self.request.observe(metrics.time_to_first_token_s + metrics.generation_s)
            if metrics.num_output_tokens > 1:
                self.time_per_output_token.observe(
                    metrics.generation_s / (metrics.num_output_tokens - 1)
                )

    def record_step(self, result: StepResult) -> None:
        """Count an executed step and what its parts took."""
        self.num_steps += 1
        self.step_run.observe(result.run_s)
        if any(row.planned_k > 0 for row in result.sequences):
            self.step_wait.observe(result.propose_s)
        for timing in result.timings:
            if timing.draft_s is not None:
                self.draft.observe(timing.drafter, timing.draft_s)
            if timing.network_s is not None:
                self.wire.observe(timing.drafter, timing.network_s)


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
