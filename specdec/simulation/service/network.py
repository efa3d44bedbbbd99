"""What a message takes from one machine to another: always the same, or lognormal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specdec.errors import ConfigError

FORMS = "constant:MS, lognormal:MEDIAN_MS:P99_MS"
Z99 = 2.3263478740408408  # of the standard normal law


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one message, in seconds: the median, and the deviation of the logarithm around it."""

    median_s: float
    spread: float = 0.0

    def sample(self, random: np.random.Generator) -> float:
        """One message."""
        if not self.spread:
            return self.median_s
        return self.median_s * math.exp(self.spread * random.standard_normal())


def parse_latency(text: str) -> Latency:
    """A latency from one of FORMS. Raises ConfigError (field `network`)."""
    kind, *fields = text.split(":")
    try:
        numbers = [float(field) / 1000 for field in fields]
    except ValueError:
        numbers = []
    if numbers and all(math.isfinite(number) and number >= 0 for number in numbers):
        match kind, numbers:
            case "constant", [median_s]:
                return Latency(median_s)
            case "lognormal", [median_s, p99_s] if 0 < median_s <= p99_s:
                return Latency(median_s, math.log(p99_s / median_s) / Z99)
    raise ConfigError(
        f"network: {text!r} is none of {FORMS}, with times in milliseconds, not negative",
        field="network",
    )
