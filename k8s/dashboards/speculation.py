"""What becomes of draft tokens: acceptance, where output tokens come from, drafters."""

from __future__ import annotations

from k8s.dashboards.panels import (
    ACCEPTANCE,
    PER_SECOND,
    RATIO,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Query,
    Row,
    by_drafter,
    gauge,
    rate,
    ratio,
)

SPECULATION = Board(
    "speculation",
    "What becomes of draft tokens?",
    [
        Row(
            "Acceptance",
            [
                Panel(
                    "Acceptance rate",
                    "Accepted over verified draft tokens. A deep K lowers it without harm; look at "
                    "positions before blaming the draft.",
                    [Query(ACCEPTANCE, "all")],
                    RATIO,
                ),
                Panel(
                    "Mean acceptance length",
                    "Tokens of a step that drafted, the target's own included.",
                    [
                        Query(
                            f"1 + {ratio('specdec_accepted_tokens_total', 'specdec_drafts_total')}",
                            "tokens",
                        )
                    ],
                ),
                Panel(
                    "Accepted by position",
                    "Accepted at each draft position over steps that drafted. A fall at position 0 "
                    "is the model; a fall at later ones alone is load or a harder task.",
                    [
                        Query(
                            f"{rate('specdec_accepted_tokens_per_pos_total', 'position')} / "
                            f"ignoring(position) group_left() {rate('specdec_drafts_total')}",
                            "{{position}}",
                        )
                    ],
                    RATIO,
                ),
            ],
        ),
        Row(
            "Tokens",
            [
                Panel(
                    "Output tokens by source",
                    "First tokens, the target's own, and accepted draft tokens.",
                    [
                        Query(rate("specdec_prefill_outputs_total"), "prefill"),
                        Query(
                            f"{rate('specdec_decode_steps_by_k_total')} - "
                            f"{rate('specdec_cut_target_tokens_total')}",
                            "target",
                        ),
                        Query(rate("specdec_emitted_accepted_tokens_total"), "draft"),
                    ],
                    TOKENS_PER_SECOND,
                    is_stacked=True,
                ),
                Panel(
                    "Draft tokens that were wasted",
                    "Verified and not in the output: rejected, or accepted and cut by a stop.",
                    [
                        Query(rate("specdec_wasted_draft_tokens_total"), "all"),
                        Query(rate("specdec_cut_accepted_tokens_total"), "cut by a stop"),
                    ],
                    TOKENS_PER_SECOND,
                ),
                Panel(
                    "Decode steps by K",
                    "Sequences by draft tokens verified in a step.",
                    [Query(rate("specdec_decode_steps_by_k_total", "k"), "K = {{k}}")],
                    PER_SECOND,
                    is_stacked=True,
                ),
            ],
        ),
        Row(
            "Drafters",
            [
                Panel(
                    "Estimated acceptance of a first draft token",
                    "What the controller reckons with.",
                    by_drafter("specdec_drafter_acceptance_ratio"),
                    RATIO,
                ),
                Panel(
                    "Drift of acceptance",
                    "Over the reference, less 1: -0.1 is a tenth lost. Needs an acceptance_log.",
                    [
                        *by_drafter("specdec_acceptance_drift_ratio"),
                        Query(
                            gauge("specdec_acceptance_drift_alarm", "drafter", how="max"),
                            "alarm {{drafter}}",
                        ),
                    ],
                ),
                Panel(
                    "Requests without speculation",
                    "By reason. draft_unavailable: no draft in reach.",
                    [Query(rate("specdec_speculation_disabled_total", "reason"), "{{reason}}")],
                    PER_SECOND,
                ),
                Panel(
                    "Changes of acceptance",
                    "Times that a drafter's acceptance was found to have changed.",
                    [Query(rate("specdec_acceptance_changes_total", "drafter"), "{{drafter}}")],
                    PER_SECOND,
                ),
                Panel(
                    "Confidence and faults",
                    "1 where a drafter's confidence is used, and where it is taken for broken.",
                    [
                        Query(
                            gauge("specdec_drafter_confidence_used", "drafter", how="avg"),
                            "confidence {{drafter}}",
                        ),
                        Query(
                            gauge("specdec_drafter_broken", "drafter", how="max"),
                            "broken {{drafter}}",
                        ),
                    ],
                ),
                Panel(
                    "Statistics not written",
                    "Hours of acceptance statistics that are lost, as when the disk is full.",
                    [Query(rate("specdec_acceptance_log_failures_total"), "periods")],
                    PER_SECOND,
                ),
            ],
        ),
    ],
)
