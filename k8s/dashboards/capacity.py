"""What is the next thing to run out: replicas, KV memory, the draft pool's time."""

from __future__ import annotations

from k8s.dashboards.panels import (
    PER_SECOND,
    RATIO,
    SECONDS,
    Board,
    Panel,
    Query,
    Row,
    by_drafter,
    gauge,
    quantiles,
    rate,
    ratio,
)

CAPACITY = Board(
    "capacity",
    "What is the next thing to run out?",
    [
        Row(
            "Fleet",
            [
                Panel(
                    "Replicas",
                    "Targets that answered; drafts connected to a target.",
                    [
                        Query(gauge("specdec_target_replicas"), "targets"),
                        Query(gauge("specdec_draft_replicas"), "drafts"),
                        Query(gauge("specdec_draft_replicas_draining"), "drafts, draining"),
                    ],
                ),
                Panel(
                    "Queue time",
                    "From arrival to the first step.",
                    quantiles("specdec_request_queue_seconds"),
                    SECONDS,
                ),
                Panel(
                    "Engine steps",
                    "Per second of all targets.",
                    [Query(rate("specdec_steps_total"), "steps")],
                    PER_SECOND,
                ),
            ],
        ),
        Row(
            "Target memory",
            [
                Panel(
                    "KV cache in use",
                    "Full is what a cache should be; full and preempting is lost work.",
                    [Query(gauge("specdec_kv_cache_usage_ratio", how="avg"), "used")],
                    RATIO,
                ),
                Panel(
                    "Preemptions",
                    "Sequences put back for memory and computed again.",
                    [Query(rate("specdec_preemptions_total"), "preemptions")],
                    PER_SECOND,
                ),
                Panel(
                    "Prefix cache",
                    "Prompt tokens found over prompt tokens looked up.",
                    [
                        Query(
                            ratio(
                                "specdec_prefix_cache_hits_total",
                                "specdec_prefix_cache_queries_total",
                            ),
                            "hits",
                        )
                    ],
                    RATIO,
                ),
            ],
        ),
        Row(
            "Draft pool",
            [
                Panel(
                    "Busy",
                    "Share of time spent drafting. Near 1: add a draft, which is the cheaper GPU.",
                    [Query(gauge("specdec_draft_busy_ratio", how="avg"), "busy")],
                    RATIO,
                ),
                Panel(
                    "Free KV blocks",
                    "Of all draft replicas. At 0 they decline with kv_full.",
                    [Query(gauge("specdec_draft_free_blocks"), "blocks")],
                ),
                Panel(
                    "Price of drafting time",
                    "The part of hidden drafting time that is charged: other targets want it.",
                    by_drafter("specdec_drafter_capacity_price"),
                ),
            ],
        ),
    ],
)
