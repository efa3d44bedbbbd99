"""Acceptance logs made up for tests of what drift costs: hours of a known draft."""

from __future__ import annotations

from specdec.speculation.controller.acceptance_log import AcceptanceRecord

START_S = 1_796_083_200.0  # 2026-12-01 00:00 UTC
HOUR_S = 3600.0
REFERENCE_HOURS = 169  # seven days, and the hour that ends them


def hour(
    number: int,
    rounds: int,
    acceptance: tuple[float, ...],
    step_s: float,
    drafter: str | None = "draft",
    label: str = "greedy",
) -> AcceptanceRecord:
    """An hour in which every round drafts one token per entry of `acceptance`, the chance that the
    token is accepted if all before it were; none means rounds without a draft."""
    trials, successes, reached = [], [], rounds
    for chance in acceptance:
        trials.append(reached)
        reached = round(reached * chance)
        successes.append(reached)
    return AcceptanceRecord(
        start_s=START_S + number * HOUR_S,
        seconds=HOUR_S,
        drafter=drafter,
        label=label,
        rounds=rounds,
        drafted=(rounds,) * len(acceptance),
        trials=tuple(trials),
        successes=tuple(successes),
        tokens=rounds + sum(successes),
        target_seconds=rounds * step_s,
    )


def dropped(rounds: int = 1_000_000) -> list[AcceptanceRecord]:
    """K = 2; acceptance of the first token 0.8 for a week, then 0.6 for eight days."""
    then = [hour(n, rounds, (0.8, 0.5), 0.001) for n in range(REFERENCE_HOURS)]
    return then + [hour(n, rounds, (0.6, 0.5), 0.001) for n in range(REFERENCE_HOURS, 15 * 24)]


def given_up() -> list[AcceptanceRecord]:
    """As `dropped`, but the controller has cut K to 1, and to 0 in half of the rounds."""
    records = [hour(n, 1_000_000, (0.8, 0.5), 0.001) for n in range(REFERENCE_HOURS)]
    for n in range(REFERENCE_HOURS, 15 * 24):
        records.append(hour(n, 500_000, (0.6,), 0.0009))
        records.append(hour(n, 500_000, (), 0.0008, drafter=None))
    return records
