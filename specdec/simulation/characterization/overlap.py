"""How much of a draft's law the target accepts: exact acceptance of one draft token, rule by rule.

Every rule is described by one vector, its accepted mass: the chance that token i is drafted,
accepted and thereby emitted. Its sum is the acceptance at this position; divided by the target's
own probability of i it is the chance that i had been accepted, given that i was emitted. Pure
numpy over two probability vectors; it knows no model and no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from specdec.sampling.law import SparseLaw

Probs = NDArray[np.float64]


class Rule(StrEnum):
    """How a draft token is chosen and verified; all of them leave the output law unchanged.

    MAXIMAL: rejection sampling with the draft's whole law. No rule accepts more of a token that is
    drawn from that law.
    SPARSE: rejection sampling with the law that is sent: the likeliest entries, in u16 weights.
    COUPLED: both draw with the same Gumbel noise; accepted on equality.
    GREEDY: the draft proposes its likeliest token; accepted if the target samples the same. It
    draws nothing, and so may exceed MAXIMAL.
    """

    MAXIMAL = "maximal"
    SPARSE = "sparse"
    COUPLED = "coupled"
    GREEDY = "greedy"


RULES = tuple(Rule)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Acceptance of one draft token at one position, in the order of RULES.

    expected: before anything is sampled. given_token: once the target's text is known to continue
    with the token asked for; empty where none was. coupled_bound: (1 - TV) / (1 + TV), which the
    coupled rule never falls below (2408.07978).
    """

    expected: tuple[float, ...]
    given_token: tuple[float, ...]
    coupled_bound: float


def overlap(
    target_probs: Probs, draft_probs: Probs, token_id: int | None, max_law_entries: int
) -> Overlap:
    """Compare two laws [V] at one position, where the text goes on with `token_id`, sampled from
    the target's law; None where the text was sampled otherwise."""
    support = np.flatnonzero((target_probs > 0) | (draft_probs > 0))
    target, draft = target_probs[support], draft_probs[support]
    masses = [
        rejection_mass(target, draft),
        rejection_mass(target, sparse_probs(draft, max_law_entries)),
        coupled_mass(target, draft),
        greedy_mass(target, draft),
    ]
    expected = tuple(min(1.0, float(mass.sum())) for mass in masses)
    given: tuple[float, ...] = ()
    if token_id is not None:
        index = int(np.searchsorted(support, token_id))
        given = tuple(min(1.0, float(mass[index] / target[index])) for mass in masses)
    return Overlap(expected, given, coupled_bound(expected[0]))


def rejection_mass(target_probs: Probs, draft_probs: Probs) -> Probs:
    """min(target, draft) [V]; its sum is 1 - TV (2211.17192, theorem 3.5)."""
    return np.minimum(target_probs, draft_probs)


def sparse_probs(draft_probs: Probs, max_law_entries: int) -> Probs:
    """The law that a draft sends and samples from instead of `draft_probs` [V]."""
    law = SparseLaw.from_probs(draft_probs, max_law_entries)
    dense = np.zeros_like(draft_probs)
    dense[law.ids] = law.probs
    return dense


def coupled_mass(target_probs: Probs, draft_probs: Probs) -> Probs:
    """P(both draw i) = 1 / sum_j max(target_j / target_i, draft_j / draft_i), [V] (2408.07978).

    The first ratio is the larger one exactly where target_j / draft_j >= target_i / draft_i. In
    the order of that quotient the sum is therefore a prefix sum of one law and a suffix sum of the
    other: O(V log V) for all i instead of O(V^2). Tokens of probability 0 on both sides must be
    absent.
    """
    with np.errstate(divide="ignore", over="ignore"):
        order = np.argsort(np.log(target_probs) - np.log(draft_probs))
        target, draft = target_probs[order], draft_probs[order]
        draft_below = np.cumsum(draft) - draft
        target_from = np.cumsum(target[::-1])[::-1]
        shared = (target > 0) & (draft > 0)
        inverse = target_from[shared] / target[shared] + draft_below[shared] / draft[shared]
    mass = np.zeros_like(target_probs)
    mass[order[shared]] = 1 / inverse
    return mass


def greedy_mass(target_probs: Probs, draft_probs: Probs) -> Probs:
    """The target's probability of the draft's likeliest token, and 0 elsewhere [V]."""
    mass = np.zeros_like(target_probs)
    likeliest = int(draft_probs.argmax())
    mass[likeliest] = target_probs[likeliest]
    return mass


def coupled_bound(maximal: float) -> float:
    """(1 - TV) / (1 + TV) from the maximal acceptance 1 - TV."""
    return maximal / (2 - maximal)


def entropy(probs: Probs) -> float:
    """Shannon entropy of a law, in nats."""
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())
