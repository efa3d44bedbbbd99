"""Has a draft's acceptance changed for good? A reference level, a change detector, a slow compare.

Works on counts per period (an hour), so that requests, whose rounds resemble each other, are
mostly whole within one. Constant time and memory per period; knows no files and no clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

DAY_S = 86_400.0
EDGE = 1e-3
# Normal quantiles: 95 % two-sided, 99 % two-sided, 99 % one-sided.
Z95, Z99, Z99_ONE_SIDED = 1.960, 2.576, 2.326


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """What counts as drift.

    `shift`: the relative change of the rate that is to be found fast; less than half of it never
    alarms. `false_alarm_chance`: at most this, for a class whose rate stays, over `horizon` blocks
    (a year of hours). The reference is what came in the first `reference_s`, longer where that
    makes fewer than `min_blocks`; the recent level is that of the last `recent_days`. A block is a
    period, or several until they hold `min_trials`.
    """

    shift: float = 0.1
    false_alarm_chance: float = 0.01
    horizon: int = 8760
    reference_s: float = 7 * DAY_S
    recent_days: int = 7
    min_blocks: int = 24
    min_trials: int = 200

    @property
    def threshold(self) -> float:
        """Evidence, as the logarithm of a likelihood ratio, from which the detector alarms.

        A run of evidence that starts at a given block exceeds e^threshold with a chance of at most
        e^-threshold (Ville's inequality). There are 2 * horizon starts: each block, up and down.
        """
        return math.log(2 * self.horizon / self.false_alarm_chance)


class RateEstimate:
    """A success rate over blocks, with its error as the spread between blocks shows it.

    Rounds of one request resemble each other, hours differ: counts scatter more than a binomial
    law says, by the factor `dispersion` (Pearson's chi-square over its degrees of freedom).
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self.trials = 0
        self.successes = 0
        self._squares = 0.0  # sum of successes^2 / trials

    def add(self, trials: int, successes: int) -> None:
        """Take in one block with at least one trial."""
        self.num_blocks += 1
        self.trials += trials
        self.successes += successes
        self._squares += successes * successes / trials

    @property
    def rate(self) -> float:
        """Successes over trials."""
        return self.successes / self.trials

    @property
    def dispersion(self) -> float:
        """Variance between blocks over the binomial one; at least 1."""
        variance = self.rate * (1 - self.rate)
        if self.num_blocks < 2 or variance == 0:
            return 1.0
        chi_square = (self._squares - self.rate * self.successes) / variance
        return max(chi_square / (self.num_blocks - 1), 1.0)

    @property
    def standard_error(self) -> float:
        """Of `rate`. Laplace's estimate keeps it above 0 where all trials ended alike."""
        smoothed = (self.successes + 1) / (self.trials + 2)
        return math.sqrt(self.dispersion * smoothed * (1 - smoothed) / self.trials)

    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the rate."""
        reach = student_quantile(Z95, self.num_blocks - 1) * self.standard_error
        return max(self.rate - reach, 0.0), min(self.rate + reach, 1.0)


def student_quantile(z: float, freedom: int) -> float:
    """The quantile of Student's t where the normal law's is `z`, to the second order in
    1 / freedom (Abramowitz and Stegun 26.7.5): within 1.2 % from 7 degrees of freedom on."""
    n = max(freedom, 1)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2


class RateCusum:
    """One side of a CUSUM: collects evidence that a rate has moved from `rate` to `moved`.

    Evidence is the log likelihood ratio of what was seen, over the dispersion, and never less than
    0. For blocks whose rate is `rate`, or further from `moved`, the exponential of the evidence of
    a run has a mean of at most 1, so that it exceeds e^threshold with a chance below e^-threshold.
    """

    def __init__(self, rate: float, moved: float, dispersion: float, threshold: float) -> None:
        self._per_success = math.log(moved / rate) / dispersion
        self._per_failure = math.log((1 - moved) / (1 - rate)) / dispersion
        self._threshold = threshold
        self.evidence = 0.0
        self.is_alarmed = False
        self.since_s: float | None = None

    def observe(self, start_s: float, trials: int, successes: int) -> None:
        """Take in one block that began at `start_s`. An alarm ends once all evidence is used up,
        and evidence is bounded, so that a rate which comes back clears it."""
        if self.evidence == 0:
            self.since_s = start_s
        step = successes * self._per_success + (trials - successes) * self._per_failure
        self.evidence = min(max(self.evidence + step, 0.0), 2 * self._threshold)
        if self.evidence >= self._threshold:
            self.is_alarmed = True
        elif self.evidence == 0:
            self.is_alarmed = False
            self.since_s = None


class DriftDetector:
    """One class's acceptance over months.

    It learns a reference, then watches for a shift up or down. A drop keeps the reference, since
    that is what was lost; a rise starts a new one, so that a better draft is held to its own level.
    """

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self._settings = settings or DriftSettings()
        self._recent: deque[list[int]] = deque(maxlen=self._settings.recent_days)
        self.num_rises = 0
        self._restart()

    def _restart(self) -> None:
        self.reference = RateEstimate()
        self.reference_start_s: float | None = None
        self.reference_end_s: float | None = None
        self._down: RateCusum | None = None
        self._up: RateCusum | None = None
        self._block_start_s = 0.0
        self._block_trials = self._block_successes = 0
        self._recent.clear()

    @property
    def has_dropped(self) -> bool:
        """Whether the rate lies below its reference for good."""
        return self._down is not None and self._down.is_alarmed

    @property
    def changed_s(self) -> float | None:
        """When the present drop began: where its evidence last was none."""
        return self._down.since_s if self._down is not None and self._down.is_alarmed else None

    @property
    def relative_change(self) -> float | None:
        """The recent days' level over the reference, less 1; None until both are known."""
        known = self.reference_end_s is not None and self.reference.rate > 0
        if not known or self.recent_trials < self._settings.min_trials:
            return None
        rate = sum(day[2] for day in self._recent) / self.recent_trials
        return rate / self.reference.rate - 1

    @property
    def recent_trials(self) -> int:
        """What the recent days' level rests on."""
        return sum(day[1] for day in self._recent)

    def observe(self, start_s: float, trials: int, successes: int) -> None:
        """Take in one period, in order of time."""
        if trials == 0:
            return
        if self._block_trials == 0:
            self._block_start_s = start_s
        self._block_trials += trials
        self._block_successes += successes
        if self.reference_end_s is not None:
            self._add_recent(start_s, trials, successes)
        if self._block_trials >= self._settings.min_trials:
            block = (self._block_start_s, self._block_trials, self._block_successes)
            self._block_trials = self._block_successes = 0
            self._observe_block(start_s, *block)

    def _observe_block(self, now_s: float, start_s: float, trials: int, successes: int) -> None:
        if self.reference_end_s is None:
            self._learn(now_s, start_s, trials, successes)
            return
        for side in (self._down, self._up):
            if side is not None:
                side.observe(start_s, trials, successes)
        if self._up is not None and self._up.is_alarmed:
            self.num_rises += 1
            self._restart()

    def _learn(self, now_s: float, start_s: float, trials: int, successes: int) -> None:
        reference, settings = self.reference, self._settings
        if self.reference_start_s is None:
            self.reference_start_s = start_s
        reference.add(trials, successes)
        is_long = now_s - self.reference_start_s >= settings.reference_s
        if is_long and reference.num_blocks >= settings.min_blocks:
            self.reference_end_s = now_s
            self._watch()

    def _watch(self) -> None:
        """Begin to look for shifts, from the ends of what the reference may be: its own error must
        not look like drift. What is all but 0 cannot drop, and what is all but 1 cannot rise."""
        reference, settings = self.reference, self._settings
        reach = Z99 * reference.standard_error
        spread = Z99_ONE_SIDED * math.sqrt(2 / (reference.num_blocks - 1))
        dispersion = reference.dispersion * (1 + spread)
        low, high = reference.rate - reach, reference.rate + reach
        if low > EDGE:
            low = min(low, 1 - EDGE)
            moved = low * (1 - settings.shift)
            self._down = RateCusum(low, moved, dispersion, settings.threshold)
        if high < 1 - EDGE:
            high = max(high, EDGE)
            moved = high + min(settings.shift * high, (1 - high) / 2)
            self._up = RateCusum(high, moved, dispersion, settings.threshold)

    def _add_recent(self, start_s: float, trials: int, successes: int) -> None:
        day = int(start_s // DAY_S)
        if not self._recent or self._recent[-1][0] != day:
            self._recent.append([day, 0, 0])
        self._recent[-1][1] += trials
        self._recent[-1][2] += successes
