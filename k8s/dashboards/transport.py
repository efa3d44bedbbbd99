"""Whether proposals come in time: parts of a step, hits and misses, faults between the two."""

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
    quantile,
    rate,
)

TRANSPORT = Board(
    "transport",
    "Do proposals come in time?",
    [
        Row(
            "Times",
            [
                Panel(
                    "Parts of a step, p50",
                    "Drafting, the wire, waiting for proposals, and the target's part.",
                    [
                        Query(quantile(0.5, "specdec_verify_seconds"), "verify"),
                        Query(quantile(0.5, "specdec_draft_wait_seconds"), "wait"),
                        Query(
                            quantile(0.5, "specdec_draft_seconds", "drafter"), "draft {{drafter}}"
                        ),
                        Query(quantile(0.5, "specdec_wire_seconds", "drafter"), "wire {{drafter}}"),
                    ],
                    SECONDS,
                ),
                Panel(
                    "Parts of a step, p95",
                    "As before. A wire above half of verify cannot be hidden behind it.",
                    [
                        Query(quantile(0.95, "specdec_verify_seconds"), "verify"),
                        Query(quantile(0.95, "specdec_draft_wait_seconds"), "wait"),
                        Query(
                            quantile(0.95, "specdec_draft_seconds", "drafter"), "draft {{drafter}}"
                        ),
                        Query(
                            quantile(0.95, "specdec_wire_seconds", "drafter"), "wire {{drafter}}"
                        ),
                    ],
                    SECONDS,
                ),
                Panel(
                    "Network as the controller sees it",
                    "Over the last 256 rounds and heartbeats, and a heartbeat's echo.",
                    [
                        Query(
                            gauge("specdec_drafter_network_p50_seconds", "drafter", how="avg"),
                            "p50 {{drafter}}",
                        ),
                        Query(
                            gauge("specdec_drafter_network_p95_seconds", "drafter", how="max"),
                            "p95 {{drafter}}",
                        ),
                        Query(gauge("specdec_draft_round_trip_seconds", how="avg"), "echo"),
                    ],
                    SECONDS,
                ),
                Panel(
                    "Exposed and hidden",
                    "What a step waits for a round, and what of it runs beside the target.",
                    [
                        Query(
                            gauge("specdec_drafter_exposed_seconds", "drafter", how="avg"),
                            "exposed {{drafter}}",
                        ),
                        Query(
                            gauge("specdec_drafter_hidden_seconds", "drafter", how="avg"),
                            "hidden {{drafter}}",
                        ),
                    ],
                    SECONDS,
                    width=12,
                ),
                Panel(
                    "Delivered",
                    "Share of the draft tokens asked for that came in time.",
                    by_drafter("specdec_drafter_delivered_ratio"),
                    RATIO,
                    width=12,
                ),
            ],
        ),
        Row(
            "Proposals",
            [
                Panel(
                    "Hits and misses",
                    "Asks that had draft tokens when the step went on, and that had none.",
                    [
                        Query(rate("specdec_draft_asks_total"), "asks"),
                        Query(rate("specdec_draft_hits_total"), "hits"),
                        Query(rate("specdec_draft_misses_total"), "misses"),
                    ],
                    PER_SECOND,
                ),
                Panel(
                    "Late and stale",
                    "Late ones may still be used in a later step; stale ones are lost.",
                    [
                        Query(rate("specdec_draft_late_total"), "late"),
                        Query(rate("specdec_draft_late_used_total"), "late and used"),
                        Query(rate("specdec_draft_stale_total"), "stale"),
                        Query(rate("specdec_draft_duplicates_total"), "duplicates"),
                    ],
                    PER_SECOND,
                ),
                Panel(
                    "Declines",
                    "Answers without tokens. kv_full, overloaded: the pool wants a replica more.",
                    [Query(rate("specdec_draft_declines_total", "reason"), "{{reason}}")],
                    PER_SECOND,
                ),
            ],
        ),
        Row(
            "Faults",
            [
                Panel(
                    "Faults",
                    "Proposals dropped or truncated, by reason. Any is a bug or a liar.",
                    [Query(rate("specdec_draft_faults_total", "reason"), "{{reason}}")],
                    PER_SECOND,
                ),
                Panel(
                    "Resyncs and disconnects",
                    "Sessions sent again as a whole; links lost.",
                    [
                        Query(rate("specdec_draft_resyncs_total"), "resyncs"),
                        Query(rate("specdec_draft_disconnects_total"), "disconnects"),
                    ],
                    PER_SECOND,
                ),
                Panel(
                    "Alarms",
                    "Times that a draft fell silent, or its network became too slow.",
                    [
                        Query(
                            rate("specdec_heartbeats_lost_total", "drafter"), "silent {{drafter}}"
                        ),
                        Query(rate("specdec_slow_network_total", "drafter"), "slow {{drafter}}"),
                    ],
                    PER_SECOND,
                ),
            ],
        ),
    ],
)
