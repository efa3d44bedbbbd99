"""What speculation can gain, in closed form: tokens, speed-up, break-even, limits.

Times are in units of one target step unless a function says otherwise. Acceptance is one number
here, the same at every position and independent of the others. Real acceptance bends with the
position and differs between requests: the controller learns that, these formulas do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specdec.errors import ConfigError

MAX_K = 128
BISECTIONS = 60

StepCost = Callable[[float], float]


def check(
    alpha: float = 0.0, k: int = 0, cost: float = 0.0, network: float = 0.0, batch: int = 1
) -> None:
    """Raise ConfigError, naming the field, where a value lies outside of its range."""
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha must be between 0 and 1, not {alpha}", field="alpha")
    if not 0 <= k <= MAX_K:
        raise ConfigError(f"k must be between 0 and {MAX_K}, not {k}", field="k")
    for name, value in (("cost", cost), ("network", network)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be finite and at least 0, not {value}", field=name)
    if batch < 1:
        raise ConfigError(f"batch must be at least 1, not {batch}", field="batch")


def acceptance_of(target_probs: Sequence[float], draft_probs: Sequence[float]) -> float:
    """Chance that a token drawn from `draft_probs` is accepted: the overlap of the two laws.

    Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.5: one minus the total variation distance.
    """
    return math.fsum(map(min, target_probs, draft_probs))


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per round: accepted ones and the recovered or bonus token (Leviathan, formula 1).

    (1 - alpha^(k+1)) / (1 - alpha), as a sum, which is exact for alpha = 1, too: k + 1.
    """
    check(alpha, k)
    return math.fsum(alpha**position for position in range(k + 1))


def speedup(alpha: float, k: int, cost: float) -> float:
    """Factor over no speculation (Leviathan, theorem 3.8).

    `cost`: one draft step over one target step. Verifying k + 1 tokens costs as much as one, which
    holds for small batches only: see `serving_speedup`.
    """
    check(alpha, k, cost)
    return expected_tokens(alpha, k) / (1 + k * cost)


def best_k(alpha: float, cost: float, max_k: int = 16) -> int:
    """The K from 0 to `max_k` with the greatest `speedup`; the smallest of equals."""
    check(alpha, max_k, cost)
    return max(range(max_k + 1), key=lambda k: speedup(alpha, k, cost))


def improves(alpha: float, cost: float) -> bool:
    """Whether any K is faster than none (Leviathan, corollary 3.9)."""
    check(alpha, cost=cost)
    return alpha > cost


def least_gain(alpha: float, cost: float) -> float:
    """What the best K gains at least if any does: the gain of k = 1 (Leviathan, corollary 3.9)."""
    return speedup(alpha, 1, cost)


def break_even_acceptance(k: int, cost: float) -> float | None:
    """The acceptance from which k draft tokens pay: `speedup` is 1. None if no acceptance does.

    For k = 1 it is the cost itself; the more draft tokens, the more it takes.
    """
    check(k=k, cost=cost)
    if k > 0 and cost > 1:
        return None
    low, high = 0.0, 1.0
    if k == 0 or cost == 0:
        return 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if speedup(middle, k, cost) < 1:
            low = middle
        else:
            high = middle
    return high


def arithmetic_inflation(alpha: float, k: int, arithmetic_cost: float) -> float:
    """Operations per token over those without speculation (Leviathan, theorem 3.11).

    `arithmetic_cost`: operations of the draft per token over those of the target.
    """
    check(alpha, k, arithmetic_cost)
    return (k * arithmetic_cost + k + 1) / expected_tokens(alpha, k)


def free_draft_limit(alpha: float) -> float:
    """Speed-up for a draft that costs nothing and k without end; infinite for alpha = 1."""
    check(alpha)
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def remote_speedup(alpha: float, k: int, cost: float, network: float) -> float:
    """Speed-up where every round waits for k draft steps and one round trip over the network.

    `network`: the round trip over one target step.
    """
    check(alpha, k, cost, network)
    waiting = k * cost + network if k else 0.0
    return expected_tokens(alpha, k) / (1 + waiting)


def asynchronous_limit(alpha: float, cost: float, network: float) -> float:
    """Most that a draft gains which runs ahead of the target along one guess.

    Between two rejections lie 1 / (1 - alpha) tokens. Each takes a draft step; the rejection takes
    a verification and a round trip before the draft may go on. Per token that is
    cost + (1 - alpha)(1 + network). Verification hides behind drafting, so it must take windows of
    1 / cost tokens. Running ahead saves the waiting for drafts, never the restart. A value below 1
    says that the target does better by not waiting for this draft at all.
    """
    check(alpha, 0, cost, network)
    per_token = cost + (1 - alpha) * (1 + network)
    return math.inf if per_token == 0 else 1 / per_token


def enumeration_speedup(alpha: float, k: int, cost: float, hit_rate: float) -> float:
    """Speed-up where the draft has prepared proposals for likely outcomes of the verification.

    A hit costs no waiting beyond the longer of drafting and verifying; a miss goes on without a
    draft, one token for one step. (Kumar, Dao and May 2026, arXiv 2603.03251, with no backup.)
    """
    check(alpha, k, cost)
    if not 0 <= hit_rate <= 1:
        raise ConfigError(f"hit_rate must be between 0 and 1, not {hit_rate}", field="hit_rate")
    tokens = hit_rate * expected_tokens(alpha, k) + (1 - hit_rate)
    return tokens / (hit_rate * max(1.0, k * cost) + (1 - hit_rate))


def hidden_draft_tokens(cost: float) -> int | None:
    """Draft steps that fit into one verification; None for a draft that costs nothing."""
    check(cost=cost)
    return _whole_parts(cost)


def targets_per_drafter(k: int, cost: float) -> int | None:
    """Targets that one drafter serves before rounds get longer; None for any number.

    `cost` is that of a draft step over the sequences of all these targets together.
    """
    check(k=k, cost=cost)
    return _whole_parts(k * cost)


def roofline(knee: float) -> StepCost:
    """Time of a step over its tokens: flat while memory is the limit, then a line.

    sqrt(1 + (tokens / knee)^2), in units of a step of few tokens. The knee of a dense model is
    peak operations / bandwidth * bytes per weight / 2: 295 tokens for bf16 on an H100.
    """
    if not (math.isfinite(knee) and knee > 0):
        raise ConfigError(f"knee must be finite and above 0, not {knee}", field="knee")
    return lambda tokens: math.hypot(1.0, tokens / knee)


def largest_free_k(knee: float, batch: int) -> int:
    """The K up to which a batch's step stays below the knee: k + 1 <= knee / batch."""
    check(batch=batch)
    return max(math.floor(knee / batch) - 1, 0)


def serving_break_even_tokens(
    k: int, batch: int, step_cost: StepCost, cost: float, network: float = 0.0
) -> float:
    """Tokens per round that a batch needs, so that k draft tokens per sequence pay.

    `cost` and `network` are what a round waits for, per draft position and in all, in the unit of
    `step_cost`; 0 where it is hidden.
    """
    check(0.0, k, cost, network, batch)
    waiting = k * cost + network if k else 0.0
    return (step_cost(batch * (k + 1)) + waiting) / step_cost(batch)


def serving_speedup(
    alpha: float, k: int, batch: int, step_cost: StepCost, cost: float, network: float = 0.0
) -> float:
    """Factor over no speculation for a whole batch, verification priced by `step_cost`."""
    needed = serving_break_even_tokens(k, batch, step_cost, cost, network)
    return expected_tokens(alpha, k) / needed


def _whole_parts(size: float) -> int | None:
    """How many parts of `size` fit into 1; None for any number.

    2.9999999999 are 3: 1 / (3 * 0.1111...) must not lose one to rounding.
    """
    parts = math.inf if size == 0 else 1 / size * (1 + 1e-12)
    return math.floor(parts) if math.isfinite(parts) else None
