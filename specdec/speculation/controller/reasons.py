"""One plain sentence for why a sequence got its k.

Numbers in, words out: it knows neither the log nor the policy, only what the policy compares.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec.speculation.controller.policy import MIN_SURVIVAL

WORTH_NAMING = 0.005


@dataclass(frozen=True, slots=True)
class Situation:
    """One sequence in one planned step.

    decided_k: what the ranking gave, without a probe. limit: the k that its request, its end and
    free KV memory allow. depth: the deepest k of its drafter in the step; num_draft_tokens: the
    batch's. next_survival: chance that draft token k + 1 is accepted with all before it; None where
    there is no such token. The rest as in `specdec.sequence.Explanation`.
    """

    phase: str
    k: int
    decided_k: int
    limit: int
    is_fixed: bool
    has_drafter: bool
    depth: int
    num_draft_tokens: int
    next_survival: float | None
    shadow_price: float
    depth_price: float
    predicted_speedup: float
    guard_ratio: float


def reason(at: Situation) -> str:
    """Why `at.k` and not another."""
    if at.is_fixed:
        return _fixed(at)
    if not at.has_drafter:
        return "no drafter may propose here now"
    if at.limit == 0:
        return "no room: the request, its end or free KV memory allows no draft token"
    if at.k > at.decided_k and at.phase in ("on", "off"):
        extra = at.k - at.decided_k
        return f"probe: tries {extra} more position{'s' if extra > 1 else ''} than pay"
    return _by_phase(at)


def _fixed(at: Situation) -> str:
    if at.k == 0 and not at.has_drafter:
        return "fixed by the request, but no drafter may propose here now"
    return "fixed by the request"


def _by_phase(at: Situation) -> str:
    match at.phase:
        case "on":
            return _ranked(at)
        case "off":
            return _off(at.predicted_speedup)
        case "calibrating" if at.k > 0:
            return "calibrating: measures what drafting costs"
        case "calibrating":
            return "waiting for calibration: what a step costs is still being measured"
        case "baseline":
            return "baseline: a step without draft tokens, to measure plain speed"
        case "guard_off":
            return f"guard: speculation ran at {at.guard_ratio:.2f} of plain speed, so it pauses"
        case other:
            return f"phase {other}"


def _off(speedup: float) -> str:
    if speedup > 1:
        return f"off: drafting promises {speedup:.2f} of plain speed, too little to begin"
    return f"off: drafting one token deep promises {speedup:.2f} of plain speed"


def _ranked(at: Situation) -> str:
    """What keeps the first position that was not taken out of the step."""
    price = max(at.shadow_price, MIN_SURVIVAL)
    if at.next_survival is None:
        which = "the only allowed position is" if at.limit == 1 else f"all {at.limit} positions are"
        return f"{which} worth the price {price:.2f}"
    position = f"position {at.k + 1} would be accepted with {at.next_survival:.2f}"
    if at.next_survival < price:
        return f"{position}, below the price {price:.2f}"
    if at.k == at.depth and at.depth_price >= WORTH_NAMING:
        return (
            f"{position}, but one more draft step for the batch must earn "
            f"{at.depth_price:.2f} tokens"
        )
    return (
        f"{position}, but the step's cost rises behind the batch's {at.num_draft_tokens} "
        "draft tokens"
    )
