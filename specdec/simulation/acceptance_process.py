"""Requests drawn from a law of acceptance, where no recordings are at hand.

A request draws its acceptance from a Beta law and its lengths from a lognormal one. Model drafters
are nearly memoryless: every position draws anew. Prompt lookup is bursty: it copies stretches. What
the drafters of one request get accepted is drawn independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.errors import ConfigError
from specdec.simulation.requests import Ints, SimulatedRequest

Floats = NDArray[np.float64]

MAX_DEPTH = 32
MAX_LEN = 32_768
RATE_LIMIT = 1e-6


@dataclass(frozen=True, slots=True)
class DrafterLaw:
    """Acceptance of one drafter.

    first: Beta(a, b) of a request's acceptance at the first draft position.
    later: acceptance at positions 2, 3, ..., given all before; the last holds for all beyond.
    autocorrelation: of consecutive rounds that match or do not, for a drafter that copies; None for
        one that is memoryless, whose whole curve then rises and falls with the request's rate.
    """

    first: tuple[float, float]
    later: tuple[float, ...]
    autocorrelation: float | None = None

    @property
    def mean_first(self) -> float:
        return self.first[0] / sum(self.first)


@dataclass(frozen=True, slots=True)
class WorkloadLaw:
    """Requests of one kind: mean lengths in tokens, the spread of their logarithms, drafters."""

    prompt_len: float
    prompt_spread: float
    output_len: float
    output_spread: float
    drafters: Mapping[str, DrafterLaw]


def draw_requests(
    law: WorkloadLaw, drafters: tuple[str, ...], count: int, seed: int
) -> tuple[SimulatedRequest, ...]:
    """`count` requests that these drafters may propose for. Raises ConfigError (field `drafter`)
    where the law tells nothing of one of them."""
    for name in drafters:
        if name not in law.drafters:
            raise ConfigError(
                f"drafter: nothing is known of {name!r} here; known are {', '.join(law.drafters)}",
                field="drafter",
            )
    random = np.random.default_rng(seed)
    return tuple(_request(law, drafters, random) for _ in range(count))


def _request(
    law: WorkloadLaw, drafters: tuple[str, ...], random: np.random.Generator
) -> SimulatedRequest:
    prompt_len = _length(law.prompt_len, law.prompt_spread, random)
    output_len = _length(law.output_len, law.output_spread, random)
    acceptable = {name: acceptable_of(law.drafters[name], output_len, random) for name in drafters}
    return SimulatedRequest(prompt_len, output_len, acceptable)


def _length(mean: float, spread: float, random: np.random.Generator) -> int:
    """Lognormal with this mean; `spread` is the deviation of the logarithm."""
    length = random.lognormal(math.log(mean) - spread**2 / 2, spread)
    return int(min(max(round(length), 1), MAX_LEN))


def acceptable_of(law: DrafterLaw, output_len: int, random: np.random.Generator) -> Ints:
    """[output_len]: draft tokens in a row that would be accepted at every output position, for one
    request with a rate of its own."""
    rate = float(np.clip(random.beta(*law.first), RATE_LIMIT, 1 - RATE_LIMIT))
    if law.autocorrelation is None:
        return _memoryless(law, rate, output_len, random)
    return _copied(law, rate, law.autocorrelation, output_len, random)


def _memoryless(law: DrafterLaw, rate: float, output_len: int, random: np.random.Generator) -> Ints:
    """Every position draws its own number, with the curve moved to the request's rate."""
    shift = _logit(rate) - _logit(law.mean_first)
    later = [_expit(_logit(chance) + shift) for chance in law.later]
    return _lengths(np.array([rate, *later]), output_len, random)


def _copied(
    law: DrafterLaw,
    rate: float,
    autocorrelation: float,
    output_len: int,
    random: np.random.Generator,
) -> Ints:
    """Stretches that are copied, each ended by a token that is not, with single tokens between.

    Whether the round after a stretch matches follows a two-state Markov chain with the request's
    rate and this autocorrelation. Within a stretch of n tokens, lookup gets n accepted, then n - 1
    from the next position on, down to 0 at the token that ends it.
    """
    acceptable = np.zeros(output_len, dtype=np.int64)
    draws = random.random(output_len)
    stretches = 1 + _lengths(np.array(law.later), output_len, random)
    position, matches = 0, bool(random.random() < rate)
    for draw, stretch in zip(draws, stretches.tolist(), strict=True):
        if position >= output_len:
            break
        if matches:
            end = min(position + stretch, output_len)
            acceptable[position:end] = stretch - np.arange(end - position)
            position = end
        position += 1
        matches = bool(draw < (1 - autocorrelation) * rate + autocorrelation * matches)
    return acceptable


def _lengths(chances: Floats, count: int, random: np.random.Generator) -> Ints:
    """[count]: draft tokens accepted in a row, position j with chance j; the last one goes on."""
    curve = np.concatenate((chances, np.full(MAX_DEPTH, chances[-1])))[:MAX_DEPTH]
    survival = np.cumprod(curve)
    # Beyond a uniform draw the survival is smaller: that many positions are accepted.
    draws = random.random(count)
    lengths: Ints = MAX_DEPTH - np.searchsorted(survival[::-1], draws, side="right")
    return lengths


def _logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value))
