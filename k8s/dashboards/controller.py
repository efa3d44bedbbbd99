"""Why K is what it is: reasons, prices, predictions, the guard."""

from __future__ import annotations

from k8s.dashboards.panels import (
    PER_SECOND,
    SPEED_UP,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Query,
    Row,
    gauge,
    rate,
)

CONTROLLER = Board(
    "controller",
    "Why is K what it is?",
    [
        Row(
            "Decisions",
            [
                Panel(
                    "Decode steps by reason",
                    "on and off: by price. guard_off: the guard pauses. no_room: max_tokens, the "
                    "context's end or KV memory allow none.",
                    [Query(rate("specdec_decode_steps_by_reason_total", "reason"), "{{reason}}")],
                    PER_SECOND,
                    is_stacked=True,
                ),
                Panel(
                    "Shadow price",
                    "What chance of acceptance a draft position must exceed; it rises with load.",
                    [Query(gauge("specdec_controller_shadow_price", how="avg"), "price")],
                ),
                Panel(
                    "Depth",
                    "The deepest K that the last decision considered.",
                    [Query(gauge("specdec_controller_depth", how="max"), "K")],
                ),
            ],
        ),
        Row(
            "Does it pay?",
            [
                Panel(
                    "Goodput",
                    "Predicted against measured, and predicted without speculation. Measured far "
                    "below predicted for long: the cost model is off.",
                    [
                        Query(gauge("specdec_predicted_goodput_tokens_per_second"), "predicted"),
                        Query(gauge("specdec_measured_goodput_tokens_per_second"), "measured"),
                        Query(
                            gauge("specdec_predicted_baseline_tokens_per_second"),
                            "predicted, K = 0",
                        ),
                    ],
                    TOKENS_PER_SECOND,
                ),
                Panel(
                    "Effective speed-up",
                    "Estimated time at K = 0 over measured time, and the guard's last window.",
                    [
                        Query(SPEED_UP, "speed-up"),
                        Query(gauge("specdec_controller_guard_ratio", how="min"), "guard, worst"),
                    ],
                ),
                Panel(
                    "Guard trips",
                    "Times that speculation was turned off, by reason.",
                    [Query(rate("specdec_guard_trips_total", "reason"), "{{reason}}")],
                    PER_SECOND,
                ),
            ],
        ),
        Row(
            "What it learns from",
            [
                Panel(
                    "First tokens",
                    "Median time to first token over that without drafting; above 1.05 the guard "
                    "trips.",
                    [Query(gauge("specdec_controller_first_token_rise", how="max"), "worst")],
                ),
                Panel(
                    "Waiting for proposals",
                    "How long a step may wait, and how often that was not enough.",
                    [
                        Query(
                            gauge("specdec_controller_wait_limit_seconds", how="avg"), "limit (s)"
                        ),
                        Query(rate("specdec_proposal_timeouts_total"), "timeouts/s"),
                    ],
                ),
                Panel(
                    "Probes and cost drift",
                    "Trials of a K that does not pay by the estimates; live step times over the "
                    "learned curve.",
                    [
                        Query(rate("specdec_probes_total"), "probes/s"),
                        Query(gauge("specdec_controller_cost_drift_ratio", how="avg"), "drift"),
                    ],
                ),
            ],
        ),
    ],
)
