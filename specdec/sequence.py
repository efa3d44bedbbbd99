"""One request in the engine, and what a step reports about it.

Plain data: no torch, no I/O. The engine alone mutates a Sequence; every other part reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from specdec.errors import SpecdecError
from specdec.params import SamplingParams


class SequenceStatus(enum.Enum):
    """Where a sequence is in its life. A preempted one is WAITING again, and one whose reader is
    behind is PAUSED."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class Verification(enum.StrEnum):
    """The rule that accepts or rejects draft tokens (design section 3)."""

    GREEDY = "greedy"
    COUPLED = "coupled"
    REJECTION = "rejection"
    BLOCK = "block"


def resolve_verification(params: SamplingParams) -> Verification:
    """The verification mode that a request gets.

    Temperature 0 is greedy whatever was asked: every rule reduces to it. `auto` is coupled where
    the request carries a seed, since then the text must not depend on K or timing, else block,
    which accepts at least as much as rejection and is exact too.
    """
    if params.is_greedy:
        return Verification.GREEDY
    if params.speculation.verification != "auto":
        return Verification(params.speculation.verification)
    return Verification.COUPLED if params.seed is not None else Verification.BLOCK


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one output position: the emitted token's, its rank (1 = likeliest),
    and the `top` likeliest as (token id, log-probability), likeliest first."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens and what became of them, in vLLM's terms. A draft is a decode step that verified
    at least one draft token. `num_emitted_accepted_tokens` excludes accepted draft tokens that a
    stop then cut off; `num_cut_target_tokens` counts drafts whose recovered or bonus token a stop
    among the accepted ones cut off."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_accepted_tokens: int = 0
    num_cut_target_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def count_draft(self, num_drafted: int, num_accepted: int, num_kept: int) -> None:
        """Count one draft; `num_kept` tokens of its step reached the output."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.num_emitted_accepted_tokens += min(num_accepted, num_kept)
        self.num_cut_target_tokens += num_kept <= num_accepted
        missing = num_drafted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * max(0, missing))
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1


@dataclass(slots=True)
class SpeculationStats(DraftCounts):
    """Counters of one request: its drafts, and each of them apart."""

    num_steps: int = 0
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)

    def record(self, num_drafted: int, num_accepted: int, num_kept: int) -> None:
        """Count one decode step; `num_kept` of its tokens reached the output."""
        self.num_steps += 1
        if num_drafted == 0:
            return
        self.count_draft(num_drafted, num_accepted, num_kept)
        self.per_step_drafted.append(num_drafted)
        self.per_step_accepted.append(num_accepted)


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its growing output.

    `token_ids` is prompt + output, committed text only: draft tokens join it after verification.
    `num_computed_tokens` counts the leading tokens whose keys and values are in `block_table`;
    a decoding sequence has exactly one token beyond it between steps.
    `seed` is 64 bits: in coupled mode the request's own, where it gave one, and shared with whoever
    drafts; in all others fresh, and never told to anybody (design section 3). `round` counts verify
    passes and never repeats, so that no random draw is used twice. `partition` separates prefix
    caches and n-gram pools (tenant and cache_salt). `traceparent`: W3C trace context, "" where the
    request is not traced. `traffic_class`: what its tokens are also counted under, or None.
    `drafters` in order of preference, empty with speculation off; `used_drafter` proposed last.
    `undrafted_reason`: why the engine has turned speculation off for this one.
    """

    seq_id: int
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int = field(repr=False)
    verification: Verification
    eos_token_ids: frozenset[int]
    max_model_len: int
    partition: str = ""
    traceparent: str = ""
    traffic_class: str | None = None
    arrival_s: float = 0.0
    deadline_s: float | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    round: int = 0
    max_k: int = 0
    drafters: tuple[str, ...] = ()
    used_drafter: str | None = None
    undrafted_reason: str | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    first_scheduled_s: float | None = None
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def tenant(self) -> str:
        """Who shares the engine with others as one; nobody's traffic is one more tenant."""
        return self.traffic_class or ""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is still to be computed, so that draft tokens may follow."""
        return self.num_tokens - self.num_computed_tokens == 1

    @property
    def num_free_output_tokens(self) -> int:
        """How many more tokens may be emitted before max_tokens or the context ends it."""
        by_request = self.params.max_tokens - self.num_output_tokens
        return min(by_request, self.max_model_len - self.num_tokens)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one sequence got its k in one step.

    step, time_s: the step's number at this controller, from 1, and when it was planned, in seconds
        on the engine's clock.
    phase: what the controller was about: idle, calibrating, baseline, on, off or guard_off.
    drafter: who was to propose; None: nobody could.
    num_draft_tokens, num_accepted_tokens: what came of it; None while the step runs.
    survival: estimated chance that draft tokens 1..j are all accepted, for j = 1..k + 1 as far as
        they were free to choose; empty where nothing was estimated.
    shadow_price: the survival that a draft position must exceed to be worth its place in the
        target's step: goodput * dT/dn (design section 5).
    depth_price: tokens that one more step of the drafter must earn over the whole batch: goodput *
        its seconds. 0 where the batch drafts deeper anyway.
    predicted_speedup: expected tokens per second of the batch over those without speculation; in
        phase off, of the best plan that was not taken.
    guard_ratio: measured speed over that without speculation in the guard's last window.
    reason: one plain sentence.
    """

    step: int
    time_s: float
    phase: str
    drafter: str | None
    k: int
    num_draft_tokens: int | None
    num_accepted_tokens: int | None
    survival: tuple[float, ...]
    shadow_price: float
    depth_price: float
    predicted_speedup: float
    guard_ratio: float
    reason: str


@dataclass(slots=True)
class RequestMetrics:
    """What a finished request tells about itself; times in seconds on the engine's clock.

    `clipped_k`: the K that a `fixed` request got where the operator's limit cut it, else None.
    `disabled_reason`: why the preferred drafter proposed nothing at the end, else None.
    `explanations`: one per decode step, oldest first and bounded, where the request asked for them.
    """

    mode: str
    verification: Verification
    drafter: str | None
    disabled_reason: str | None
    clipped_k: int | None
    max_k: int
    stats: SpeculationStats
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queue_s: float
    time_to_first_token_s: float
    generation_s: float
    explanations: list[Explanation] | None = None


@dataclass(slots=True)
class SequenceOutput:
    """What one step produced for one sequence; the last one carries `finish_reason`.

    `finish_reason` is stop | length | abort | error; `stop_reason` is the stop string, or the
    stop token's id, or None for EOS. `num_accepted_tokens` of the `num_draft_tokens` verified were
    accepted; `draft_token_ids` are those verified, for display. For requests with `explain` alone:
    `token_texts`, what each token adds to the text, and the `drafter` of this step's draft tokens.
    """

    seq_id: int
    request_id: str
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    draft_token_ids: list[int] = field(default_factory=list)
    num_accepted_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: SpecdecError | None = None
    metrics: RequestMetrics | None = None
    token_texts: list[str] = field(default_factory=list)
    drafter: str | None = None
