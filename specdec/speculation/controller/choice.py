"""Which of several available drafters proposes for each sequence of a step.

A batched draft model runs as many steps as its deepest sequence asks for, whoever else joins: what
it costs is decided for the batch, what it brings for each sequence. Knows numbers only: estimates
of acceptance and cost are other modules'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.speculation.controller.policy import ProposeCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Choices after which a drafter that nobody was given gets a sequence: it may have become better.
RETRY_AFTER = 200
# Choices in which a new model gets every sequence: what is believed of it is only a prior, and
# lookup beside it, which is scored in any case, would never let it show better.
FIRST_TURNS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """One drafter. survival: [sequences, max_k], zeros where it cannot propose."""

    name: str
    survival: Floats
    available: NDArray[np.bool_]
    cost: ProposeCost


@dataclass(frozen=True, slots=True)
class _Worth:
    """What an offer brings each sequence with k at most 0..max_k, [sequences, max_k + 1]: accepted
    tokens net of the price of draft tokens; accepted tokens; draft tokens."""

    net: Floats
    gained: Floats
    spent: Floats


@dataclass(frozen=True, slots=True)
class _Assignment:
    """[sequences] each: index of the offer, and what it is worth (see _Worth)."""

    chosen: Ints
    net: Floats
    gained: Floats
    spent: Floats


class DrafterChooser:
    """Chooses for a whole step, and remembers how long each drafter was without a sequence."""

    def __init__(self) -> None:
        self._num_choices = 0
        self._last_turn: dict[str, int] = {}
        self._num_turns: Counter[str] = Counter()

    def choose(
        self, offers: SequenceOf[Offer], run_s: Callable[[Floats], Floats], price: float
    ) -> Ints:
        """[sequences], index of the offer that each sequence takes, the first of equal ones.

        run_s: draft tokens in the step -> seconds of the target. price: the survival that a draft
        token must exceed to be worth its place in the step (the shadow price).

        Drafters that cost nothing by depth are asked by all. Of the others at most one joins: each
        depth of each is scored with every sequence on the side that is worth more to it.
        """
        self._num_choices += 1
        best = _without_models(offers, price)
        best_score = float(_scores(best.gained.sum(), best.spent.sum(), 0.0, run_s, len(best.net)))
        lookups = best
        for index, offer in enumerate(offers):
            if not offer.cost.is_flat:
                score, assignment = _with_model(index, offer, lookups, run_s, price)
                if score > best_score:
                    best_score, best = score, assignment
        self._give_turns(offers, best.chosen)
        return best.chosen

    def _give_turns(self, offers: SequenceOf[Offer], chosen: Ints) -> None:
        """Count who has sequences; a new model gets all that it can, and an offer that was without
        any for long the first."""
        new = [i for i, offer in enumerate(offers) if self._is_new(offer)]
        if new:
            chosen[offers[new[0]].available] = new[0]
        for index, offer in enumerate(offers):
            last = self._last_turn.setdefault(offer.name, self._num_choices)
            if self._num_choices - last >= RETRY_AFTER and offer.available.any():
                chosen[int(np.argmax(offer.available))] = index
            if (chosen == index).any():
                self._last_turn[offer.name] = self._num_choices
                self._num_turns[offer.name] += 1

    def _is_new(self, offer: Offer) -> bool:
        is_untried = self._num_turns[offer.name] < FIRST_TURNS
        return is_untried and not offer.cost.is_flat and bool(offer.available.any())


def _worth(survival: Floats, price: float) -> _Worth:
    # Survivals fall along a row: the positions that are worth their price are its first ones.
    worthy = survival >= price
    gained = np.where(worthy, survival, 0.0)
    start = np.zeros((len(survival), 1))
    columns = (gained - price * worthy, gained, worthy.astype(np.float64))
    net, gained, spent = (
        np.concatenate((start, np.cumsum(column, axis=1)), axis=1) for column in columns
    )
    return _Worth(net, gained, spent)


def _without_models(offers: SequenceOf[Offer], price: float) -> _Assignment:
    """Every sequence with the best offer whose depth costs nothing, else with its first one."""
    available = np.array([offer.available for offer in offers])
    chosen: Ints = np.argmax(available, axis=0)
    net, gained, spent = np.zeros((3, available.shape[1]))
    for index, offer in enumerate(offers):
        if not offer.cost.is_flat:
            continue
        worth = _worth(offer.survival, price)
        is_model = np.array([not offers[i].cost.is_flat for i in chosen.tolist()], dtype=bool)
        better = offer.available & ((worth.net[:, -1] > net) | is_model)
        chosen = np.where(better, index, chosen)
        net = np.where(better, worth.net[:, -1], net)
        gained = np.where(better, worth.gained[:, -1], gained)
        spent = np.where(better, worth.spent[:, -1], spent)
    return _Assignment(chosen, net, gained, spent)


def _with_model(
    index: int,
    offer: Offer,
    others: _Assignment,
    run_s: Callable[[Floats], Floats],
    price: float,
) -> tuple[float, _Assignment]:
    """The best depth of a model that takes the sequences to which it is worth more."""
    worth = _worth(offer.survival, price)
    takes = (worth.net > others.net[:, None]) & offer.available[:, None]
    gained = np.where(takes, worth.gained, others.gained[:, None])
    spent = np.where(takes, worth.spent, others.spent[:, None])
    drafted = np.where(takes, worth.spent, 0.0).sum(axis=0)
    propose_s = offer.cost.by_depth[: len(drafted)] + offer.cost.per_token_s * drafted
    scores = _scores(gained.sum(axis=0), spent.sum(axis=0), propose_s, run_s, len(takes))
    depth = int(np.argmax(scores))
    assignment = _Assignment(
        np.where(takes[:, depth], index, others.chosen),
        np.where(takes[:, depth], worth.net[:, depth], others.net),
        gained[:, depth],
        spent[:, depth],
    )
    return float(scores[depth]), assignment


def preference(options: SequenceOf[tuple[str, ...]]) -> Callable[[str], tuple[int, str]]:
    """Sort key: the drafter that stands first where it stands."""
    rank: dict[str, int] = {}
    for names in set(options):
        for position, name in enumerate(names):
            rank[name] = max(position, rank.get(name, 0))
    return lambda name: (rank[name], name)


def _scores(
    gained: Floats,
    spent: Floats,
    propose_s: Floats | float,
    run_s: Callable[[Floats], Floats],
    num_sequences: int,
) -> Floats:
    """Expected tokens per second of the batch."""
    seconds = run_s(np.asarray(spent)) + propose_s
    result: Floats = (num_sequences + gained) / np.maximum(seconds, 1e-9)
    return result
