"""When requests arrive: Poisson, with a rate that may burst, ramp, or follow the day.

Knows rates per second of the whole service. Which request arrives, and where, is told elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from specdec.errors import ConfigError

DAY_S = 86_400.0
BURST_SHARE = 0.2
QUIETEST_S = 4 * 3600.0
FORMS = "poisson:RATE, bursts:LOW:HIGH:PERIOD, ramp:R1:R2[:R3...], day:LOW:HIGH"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """rate: requests per second at a time; peak: the greatest value it takes."""

    rate: Callable[[float], float]
    peak: float

    def times(
        self, start_s: float, end_s: float, random: np.random.Generator, share: float = 1.0
    ) -> Iterator[float]:
        """Arrivals of a Poisson process with `share` of the rate, in order, by thinning."""
        peak = self.peak * share
        now_s = start_s
        while peak > 0:
            now_s += random.exponential(1 / peak)
            if now_s >= end_s:
                return
            if random.random() * self.peak < self.rate(now_s):
                yield now_s


def poisson(rate: float) -> Arrivals:
    """The same rate all the time."""
    return Arrivals(lambda _: rate, rate)


def bursts(low: float, high: float, period_s: float) -> Arrivals:
    """`high` for the first fifth of every period, `low` for the rest."""

    def rate(now_s: float) -> float:
        return high if (now_s % period_s) < BURST_SHARE * period_s else low

    return Arrivals(rate, max(low, high))


def ramp(corners: SequenceOf[float], duration_s: float) -> Arrivals:
    """Straight lines from one rate to the next, at even distances over the duration."""
    times = np.linspace(0.0, duration_s, len(corners))
    return Arrivals(lambda now_s: float(np.interp(now_s, times, corners)), max(corners))


def day(low: float, high: float) -> Arrivals:
    """A wave of 24 hours: `low` at four in the morning, `high` at four in the afternoon."""

    def rate(now_s: float) -> float:
        phase = 2 * math.pi * (now_s - QUIETEST_S) / DAY_S
        return low + (high - low) * (1 - math.cos(phase)) / 2

    return Arrivals(rate, max(low, high))


def parse_arrivals(text: str, duration_s: float) -> Arrivals:
    """Arrivals from one of FORMS. Raises ConfigError (field `arrivals`)."""
    kind, *fields = text.split(":")
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        numbers = []
    if not numbers or any(not (math.isfinite(number) and number >= 0) for number in numbers):
        raise _unknown(text)
    match kind, numbers:
        case "poisson", [rate]:
            return _checked(text, poisson(rate))
        case "bursts", [low, high, period_s] if period_s > 0:
            return _checked(text, bursts(low, high, period_s))
        case "ramp", [_, _, *_]:
            return _checked(text, ramp(numbers, duration_s))
        case "day", [low, high]:
            return _checked(text, day(low, high))
    raise _unknown(text)


def _checked(text: str, arrivals: Arrivals) -> Arrivals:
    if arrivals.peak <= 0:
        raise ConfigError(f"arrivals: {text!r} never lets a request arrive", field="arrivals")
    return arrivals


def _unknown(text: str) -> ConfigError:
    return ConfigError(
        f"arrivals: {text!r} is none of {FORMS}, with rates in requests per second and times in "
        "seconds, none negative",
        field="arrivals",
    )
