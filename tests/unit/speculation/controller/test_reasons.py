"""The sentence for each cause, from situations made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec.speculation.controller.reasons import Situation, reason

# Three positions were taken; the fourth is less likely than a position's price.
RANKED = Situation(
    phase="on",
    k=3,
    decided_k=3,
    limit=8,
    is_fixed=False,
    has_drafter=True,
    depth=3,
    num_draft_tokens=7,
    next_survival=0.31,
    shadow_price=0.38,
    depth_price=0.8,
    predicted_speedup=1.4,
    guard_ratio=1.2,
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "position 4 would be accepted with 0.31, below the price 0.38"),
        (
            {"next_survival": 0.45},
            "position 4 would be accepted with 0.45, but one more draft step for the batch must "
            "earn 0.80 tokens",
        ),
        (
            {"next_survival": 0.45, "depth_price": 0.0},
            "position 4 would be accepted with 0.45, but the step's cost rises behind the batch's "
            "7 draft tokens",
        ),
        (
            {"next_survival": 0.45, "depth": 5},
            "position 4 would be accepted with 0.45, but the step's cost rises behind the batch's "
            "7 draft tokens",
        ),
        # A price of nothing still asks for 0.02 (the policy's MIN_SURVIVAL).
        (
            {"next_survival": 0.01, "shadow_price": 0.0},
            "position 4 would be accepted with 0.01, below the price 0.02",
        ),
        (
            {"k": 8, "decided_k": 8, "next_survival": None},
            "all 8 positions are worth the price 0.38",
        ),
        (
            {"k": 1, "decided_k": 1, "limit": 1, "next_survival": None},
            "the only allowed position is worth the price 0.38",
        ),
        (
            {"k": 0, "decided_k": 0, "next_survival": 0.3},
            "position 1 would be accepted with 0.30, below the price 0.38",
        ),
        ({"k": 5}, "probe: tries 2 more positions than pay"),
        ({"k": 1, "decided_k": 0, "phase": "off"}, "probe: tries 1 more position than pay"),
        (
            {"k": 0, "decided_k": 0, "phase": "off", "predicted_speedup": 0.97},
            "off: drafting one token deep promises 0.97 of plain speed",
        ),
        (
            {"k": 0, "decided_k": 0, "phase": "off", "predicted_speedup": 1.03},
            "off: drafting promises 1.03 of plain speed, too little to begin",
        ),
        ({"phase": "calibrating"}, "calibrating: measures what drafting costs"),
        (
            {"phase": "calibrating", "k": 0, "decided_k": 0},
            "waiting for calibration: what a step costs is still being measured",
        ),
        (
            {"phase": "baseline", "k": 0, "decided_k": 0},
            "baseline: a step without draft tokens, to measure plain speed",
        ),
        (
            {"phase": "guard_off", "k": 0, "decided_k": 0, "guard_ratio": 0.934},
            "guard: speculation ran at 0.93 of plain speed, so it pauses",
        ),
        ({"is_fixed": True, "limit": 0}, "fixed by the request"),
        (
            {"is_fixed": True, "has_drafter": False, "k": 0, "limit": 0},
            "fixed by the request, but no drafter may propose here now",
        ),
        ({"has_drafter": False, "limit": 0, "k": 0}, "no drafter may propose here now"),
        (
            {"limit": 0, "k": 0, "decided_k": 0},
            "no room: the request, its end or free KV memory allows no draft token",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cause_has_its_sentence(changes: dict[str, object], sentence: str) -> None:
    assert reason(replace(RANKED, **changes)) == sentence
