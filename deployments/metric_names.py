"""Every metric that the fleet exports: its name, kind, meaning, and where a reading has it.

Names are specdec_*; units are seconds, tokens and ratios between 0 and 1. Labels are few and
bounded: drafters and reasons from fixed lists, draft positions and K up to the operator's limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "mean", "min", "max"]


@dataclass(frozen=True, slots=True)
class Family:
    """`merge`: how a gauge of several target replicas becomes one; counters add up."""

    kind: Kind
    text: str
    merge: Merge = "mean"


# Attributes of EngineCounters, less the `num_`.
ENGINE_COUNTERS = {
    "steps": "Engine steps.",
    "requests": "Requests that began to answer.",
    "prompt_tokens": "Prompt tokens of requests that began to answer.",
    "prefill_outputs": "Output tokens that a prefill ended with: first ones, and after preemption.",
    "not_finite": "Requests ended since the model computed NaN or infinities for them.",
    "generation_tokens": "Output tokens.",
    "drafts": "Decode steps of a sequence that verified at least one draft token.",
    "draft_tokens": "Draft tokens verified.",
    "accepted_tokens": "Draft tokens accepted.",
    "emitted_accepted_tokens": "Accepted draft tokens that no stop cut off.",
    "cut_target_tokens": "Decode steps whose own token a stop among accepted draft tokens cut off.",
}
# Attribute of EngineCounters -> (name, label, meaning).
ENGINE_COUNTERS_BY = {
    "finished": ("requests_finished", "finish_reason", "Requests ended."),
    "disabled": ("speculation_disabled", "reason", "Requests without speculation."),
    "steps_by_k": ("decode_steps_by_k", "k", "Decode steps of sequences by draft tokens verified."),
}
# Attributes of ClassCounts, less the `num_`; not exported.
CLASS_COUNTERS = ("steps", "draft_tokens", "accepted_tokens", "generation_tokens")
ENGINE_HISTOGRAMS = {
    "time_to_first_token": ("time_to_first_token_seconds", "From arrival to the first token."),
    "time_per_output_token": (
        "time_per_output_token_seconds",
        "After a finished request's first token, per token.",
    ),
    "inter_token_latency": (
        "inter_token_latency_seconds",
        "From one output of a sequence to the next; an output is all tokens of a step.",
    ),
    "queue": ("request_queue_seconds", "From arrival to the first step."),
    "request": ("request_seconds", "From arrival to the end of a finished request."),
    "step_run": ("verify_seconds", "The target's part of a step, verification included."),
    "step_wait": ("draft_wait_seconds", "What a step that asked for proposals waited for them."),
}
HISTOGRAMS_BY_DRAFTER = {
    "draft": ("draft_seconds", "The draft's own time for a round."),
    "wire": ("wire_seconds", "A message to a draft and its answer, less the draft's own time."),
}
LINK_COUNTERS = {
    "asks": "Times that a sequence asked for draft tokens.",
    "hits": "Asks that had draft tokens when the step went on.",
    "misses": "Asks that had none when the step went on.",
    "late": "Proposals that came after their step had gone on.",
    "late_used": "Late proposals whose tokens still extended the text in a later step.",
    "stale": "Proposals dropped, since the text went another way or the epoch is over.",
    "duplicates": "Proposals that came again.",
    "resyncs": "Sessions that had to be sent again as a whole.",
    "disconnects": "Links to a draft replica lost.",
}
LINK_COUNTERS_BY = {
    "faults": "Dropped or truncated proposals by reason.",
    "declines": "Answers without tokens by reason.",
}

# What a controller's snapshot calls it -> name. Counters first.
CONTROLLER_COUNTERS = {
    "probes": ("probes", "Trials of a K that does not pay by the present estimates."),
    "timeouts": ("proposal_timeouts", "Waits for a proposal that reached their limit."),
    "baseline_s": (
        "baseline_seconds",
        "Estimated time without speculation of what speculating steps committed.",
    ),
    "speculating_s": ("speculating_seconds", "Time that those steps took."),
    "acceptance_log_failures": ("acceptance_log_failures", "Periods that were not written down."),
}
# Prefix in the snapshot -> (name, label, meaning); the label's value is the rest of the key.
CONTROLLER_COUNTERS_BY = {
    "steps_by_reason": ("decode_steps_by_reason", "reason", "Decode steps of sequences, planned."),
    "guard_trips": ("guard_trips", "reason", "Times that the guard turned speculation off."),
    "acceptance_changes": ("acceptance_changes", "drafter", "Changes of acceptance found."),
    "alarms_heartbeat_lost": ("heartbeats_lost", "drafter", "Times that a draft fell silent."),
    "alarms_slow_network": ("slow_network", "drafter", "Times that its network became too slow."),
}
CONTROLLER_GAUGES: dict[str, tuple[str, str, Merge]] = {
    "shadow_price": (
        "controller_shadow_price",
        "Survival that a draft position must exceed to be worth its place in a step.",
        "mean",
    ),
    "predicted_goodput": (
        "predicted_goodput_tokens_per_second",
        "Committed tokens per second that the last decision expects.",
        "sum",
    ),
    "measured_goodput": (
        "measured_goodput_tokens_per_second",
        "Committed tokens per second of engine steps, over the last steps.",
        "sum",
    ),
    "predicted_baseline": (
        "predicted_baseline_tokens_per_second",
        "Tokens per second that the last decision expects without speculation.",
        "sum",
    ),
    "depth": ("controller_depth", "Deepest K that the last decision considers.", "max"),
    "guard_ratio": (
        "controller_guard_ratio",
        "Speed over that without speculation in the guard's last window, worst replica.",
        "min",
    ),
    "first_token_rise": (
        "controller_first_token_rise",
        "First-token times over those without speculation, worst replica.",
        "max",
    ),
    "wait_s": ("controller_wait_limit_seconds", "How long the next step may wait.", "mean"),
    "drift": ("controller_cost_drift_ratio", "Change of the target's step time.", "mean"),
}
CONTROLLER_GAUGES_BY_DRAFTER: dict[str, tuple[str, str, Merge]] = {
    "acceptance_first": (
        "drafter_acceptance_ratio",
        "Estimated acceptance of a first draft token.",
        "mean",
    ),
    "delivered": ("drafter_delivered_ratio", "Share of the asked draft tokens that came.", "mean"),
    "confidence_used": ("drafter_confidence_used", "1 where its confidence is used.", "mean"),
    "broken": ("drafter_broken", "1 where a replica takes it for broken.", "max"),
    "exposed_s": ("drafter_exposed_seconds", "What a step waits for a round.", "mean"),
    "hidden_s": ("drafter_hidden_seconds", "What of a round runs beside the target.", "mean"),
    "capacity_price": ("drafter_capacity_price", "What its other targets lose by a round.", "mean"),
    "network_p50_s": ("drafter_network_p50_seconds", "Median of the way there and back.", "mean"),
    "network_p95_s": ("drafter_network_p95_seconds", "95th percentile of the way.", "max"),
    "acceptance_drift": (
        "acceptance_drift_ratio",
        "Acceptance of a first draft token over its reference, less 1.",
        "mean",
    ),
    "drift_alarm": ("acceptance_drift_alarm", "1 where acceptance has dropped.", "max"),
}
# Told elsewhere, with more detail.
CONTROLLER_LEFT_OUT = ("guard_trips", "steps")

STATE_GAUGES = {
    "target_replicas": Family("gauge", "Target replicas that answered.", "sum"),
    "requests_running": Family("gauge", "Sequences in the batch.", "sum"),
    "requests_waiting": Family("gauge", "Sequences in the queue.", "sum"),
    "kv_cache_usage_ratio": Family("gauge", "Used share of KV blocks, mean."),
    "draft_round_trip_seconds": Family("gauge", "Smoothed time of a heartbeat's echo, mean."),
    "draft_replicas": Family("gauge", "Draft replicas connected to a target.", "sum"),
    "draft_replicas_draining": Family("gauge", "Of those, the ones that are going away.", "sum"),
    "draft_free_blocks": Family("gauge", "Free KV blocks of all draft replicas.", "sum"),
    "draft_busy_ratio": Family("gauge", "Share of time spent drafting, mean."),
}
STATE_COUNTERS = {
    "preemptions": "Sequences put back for memory.",
    "prefix_cache_queries": "Prompt tokens looked up.",
    "prefix_cache_hits": "Prompt tokens found.",
    "wasted_draft_tokens": "Draft tokens verified that did not reach the output.",
    "cut_accepted_tokens": "Accepted draft tokens that a stop cut off.",
}
PER_POSITION = "accepted_tokens_per_pos"
# Benchmark clients read these; Ray's own exporter cannot write a colon.
VLLM_ALIASES = {
    "vllm:spec_decode_num_drafts": "specdec_drafts",
    "vllm:spec_decode_num_draft_tokens": "specdec_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "specdec_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "specdec_accepted_tokens_per_pos",
}


def families() -> dict[str, Family]:
    """Full name -> what it is, in the order in which they are written; aliases not among them."""
    counters = {
        **ENGINE_COUNTERS,
        **STATE_COUNTERS,
        PER_POSITION: "Draft tokens accepted at each draft position, from 0.",
        **{name: text for name, _, text in ENGINE_COUNTERS_BY.values()},
        **{f"draft_{name}": text for name, text in {**LINK_COUNTERS, **LINK_COUNTERS_BY}.items()},
        **dict(CONTROLLER_COUNTERS.values()),
        **{name: text for name, _, text in CONTROLLER_COUNTERS_BY.values()},
    }
    histograms = dict([*ENGINE_HISTOGRAMS.values(), *HISTOGRAMS_BY_DRAFTER.values()])
    controller = [*CONTROLLER_GAUGES.values(), *CONTROLLER_GAUGES_BY_DRAFTER.values()]
    named = {
        **{name: Family("counter", text) for name, text in counters.items()},
        **{name: Family("histogram", text) for name, text in histograms.items()},
        **STATE_GAUGES,
        **{name: Family("gauge", text, merge) for name, text, merge in controller},
    }
    return {f"specdec_{name}": family for name, family in named.items()}


FAMILIES = families()
