"""Is the service well, and does speculation pay? Traffic and latency of the whole fleet."""

from __future__ import annotations

from k8s.dashboards.panels import (
    ACCEPTANCE,
    PER_SECOND,
    RATIO,
    SECONDS,
    SPEED_UP,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Query,
    Row,
    gauge,
    quantile,
    quantiles,
    rate,
    stat,
)

OVERVIEW = Board(
    "overview",
    "Is the service well, and does speculation pay?",
    [
        Row(
            "At a glance",
            [
                stat(
                    "Output tokens",
                    "Tokens per second of the whole fleet.",
                    rate("specdec_generation_tokens_total"),
                    TOKENS_PER_SECOND,
                ),
                stat(
                    "First token, p95",
                    "From arrival to the first token. The objective is 99 % within a second.",
                    quantile(0.95, "specdec_time_to_first_token_seconds"),
                    SECONDS,
                ),
                stat(
                    "Per output token, p50",
                    "Of finished requests, after their first token.",
                    quantile(0.5, "specdec_time_per_output_token_seconds"),
                    SECONDS,
                ),
                stat("Acceptance", "Accepted over verified draft tokens.", ACCEPTANCE, RATIO),
                stat(
                    "Effective speed-up",
                    "Estimated time without speculation over time with it, of speculating steps. "
                    "Below 1 the guard steps in.",
                    SPEED_UP,
                ),
                stat(
                    "Targets",
                    "Replicas that answered the scrape.",
                    gauge("specdec_target_replicas"),
                ),
            ],
        ),
        Row(
            "Traffic",
            [
                Panel(
                    "Tokens",
                    "Prompt tokens of requests that began to answer, and output tokens.",
                    [
                        Query(rate("specdec_generation_tokens_total"), "output"),
                        Query(rate("specdec_prompt_tokens_total"), "prompt"),
                    ],
                    TOKENS_PER_SECOND,
                ),
                Panel(
                    "Requests",
                    "Begun, and ended by how: error is a fault or a passed timeout, abort a client "
                    "that left. Not finite: errors whose cause is the model's own logits.",
                    [
                        Query(rate("specdec_requests_total"), "begun"),
                        Query(
                            rate("specdec_requests_finished_total", "finish_reason"),
                            "{{finish_reason}}",
                        ),
                        Query(rate("specdec_not_finite_total"), "not finite"),
                    ],
                    PER_SECOND,
                ),
                Panel(
                    "Running and waiting",
                    "Waiting that grows: too few targets, or no KV memory.",
                    [
                        Query(gauge("specdec_requests_running"), "running"),
                        Query(gauge("specdec_requests_waiting"), "waiting"),
                    ],
                ),
            ],
        ),
        Row(
            "Latency",
            [
                Panel(
                    "Time to first token",
                    "From arrival, queue included.",
                    quantiles("specdec_time_to_first_token_seconds"),
                    SECONDS,
                ),
                Panel(
                    "Time per output token",
                    "Of finished requests, after the first token.",
                    quantiles("specdec_time_per_output_token_seconds"),
                    SECONDS,
                ),
                Panel(
                    "Between outputs",
                    "From one output to the next; an output is all tokens of a step.",
                    quantiles("specdec_inter_token_latency_seconds"),
                    SECONDS,
                ),
                Panel(
                    "Whole request",
                    "From arrival to the end, of requests that came to it.",
                    quantiles("specdec_request_seconds"),
                    SECONDS,
                    width=12,
                ),
                Panel(
                    "Late first tokens",
                    "Share later than a second, over 5 minutes and an hour; 1 % is the objective.",
                    [
                        Query("specdec:first_token_late:ratio5m", "5 min"),
                        Query("specdec:first_token_late:ratio1h", "1 h"),
                    ],
                    RATIO,
                    width=12,
                ),
            ],
        ),
    ],
)
