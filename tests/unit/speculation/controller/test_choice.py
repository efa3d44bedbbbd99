"""Who drafts for whom, against the enumeration of every assignment, and in a simulated engine."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from specdec.config import SpeculationConfig
from specdec.speculation.controller import (
    BatchState,
    GoodputController,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.controller.choice import (
    FIRST_TURNS,
    RETRY_AFTER,
    DrafterChooser,
    Offer,
)
from specdec.speculation.controller.interface import Scored
from specdec.speculation.controller.policy import ProposeCost

BOTH = ("draft", "ngram")
RUN_S, ROW_S, DRAFT_S = 0.050, 0.001, 0.020
MAX_K = 6


def offer(name: str, rows: list[list[float]], step_s: float, available=None, token_s=0.0) -> Offer:
    """One drafter with these survivals and so many seconds for a draft step; 0: lookup."""
    survival = np.array(rows)
    may = np.ones(len(rows), bool) if available is None else np.array(available)
    by_depth = step_s * np.arange(survival.shape[1] + 1)
    return Offer(name, survival * may[:, None], may, ProposeCost(by_depth, token_s, step_s == 0))


def powers(alphas: list[float], max_k: int = 3) -> list[list[float]]:
    return [[alpha**j for j in range(1, max_k + 1)] for alpha in alphas]


@dataclass
class Enumeration:
    """Every k of every sequence, and what a step with them gives under an assignment."""

    offers: list[Offer]
    run_s: np.ndarray  # seconds by draft tokens in the step

    def best(self, chosen: tuple[int, ...]) -> tuple[float, float]:
        """Tokens per second at the best ks, and the shadow price there: goodput * dT/dn."""
        num, max_k = self.offers[0].survival.shape
        ks = np.array(list(itertools.product(range(max_k + 1), repeat=num)))
        tokens = np.full(len(ks), float(num))
        propose_s = np.zeros(len(ks))
        for row, index in enumerate(chosen):
            gained = np.concatenate(([0.0], np.cumsum(self.offers[index].survival[row])))
            tokens += gained[ks[:, row]]
        for index, candidate in enumerate(self.offers):
            mine = ks * (np.array(chosen) == index)
            propose_s += candidate.cost.by_depth[mine.max(axis=1)]
            propose_s += candidate.cost.per_token_s * mine.sum(axis=1)
        num_drafted = ks.sum(axis=1)
        speeds = tokens / (self.run_s[num_drafted] + propose_s)
        best = int(np.argmax(speeds))
        low, high = max(0, num_drafted[best] - 2), num_drafted[best] + 2
        slope = (self.run_s[high] - self.run_s[low]) / (high - low)
        return float(speeds[best]), float(speeds[best] * slope)

    def best_of_all(self) -> float:
        """The best of every assignment to an available offer."""
        may = [np.flatnonzero(row) for row in np.array([o.available for o in self.offers]).T]
        return max(self.best(chosen)[0] for chosen in itertools.product(*(x.tolist() for x in may)))

    def reached(self) -> float:
        """What the chooser's assignments give, its price being that of the step before: the mean
        of six steps after the first two."""
        chooser, price = settled(self), 0.0
        speeds = []
        for _ in range(8):
            chosen = choose(self, chooser, price)
            speed, price = self.best(chosen)
            speeds.append(speed)
        return float(np.mean(speeds[2:]))


def choose(case: Enumeration, chooser: DrafterChooser, price: float = 0.0) -> tuple[int, ...]:
    return tuple(chooser.choose(case.offers, lambda n: case.run_s[n.astype(int)], price).tolist())


def settled(case: Enumeration) -> DrafterChooser:
    """One to whom no drafter is new any more."""
    chooser = DrafterChooser()
    for _ in range(FIRST_TURNS * len(case.offers)):
        choose(case, chooser)
    return chooser


def random_case(draws: np.random.Generator) -> Enumeration:
    """Up to three sequences, one or two lookups and one or two models, staircases among the costs;
    whoever is available, every sequence has somebody."""
    num = int(draws.integers(1, 4))
    offers = []
    for name, step_s in (
        ("draft", draws.uniform(0.05, 0.5)),
        ("head", draws.uniform(0.05, 0.5)),
        ("ngram", 0.0),
        ("suffix", 0.0),
    )[int(draws.integers(0, 2)) : int(draws.integers(3, 5))]:
        may = draws.random(num) < 0.7 if offers else [True] * num
        conditional = draws.uniform(0.0, 1.0, (num, 3))
        token_s = float(draws.choice([0.0, 0.02]))
        offers.append(offer(name, np.cumprod(conditional, axis=1).tolist(), step_s, may, token_s))
    increments = draws.choice([0.0, 0.02, 0.2], size=3 * num + 2, p=[0.4, 0.4, 0.2])
    return Enumeration(offers, 1.0 + np.concatenate(([0.0], np.cumsum(increments))))


def test_on_random_cases_hardly_any_assignment_is_better() -> None:
    """A staircase of up to 9 draft tokens is the hardest there is: no slope tells its price."""
    draws = np.random.default_rng(3)
    cases = [random_case(draws) for _ in range(120)]
    shares = np.array([case.reached() / case.best_of_all() for case in cases])
    assert np.mean(shares) >= 0.998
    assert np.mean(shares >= 0.97) >= 0.97


def test_lookups_cost_nothing_by_depth_and_each_sequence_takes_the_better_one() -> None:
    """Price 0.1. First sequence: 0.6 - 0.1 + 0.36 - 0.1 + 0.216 - 0.1 = 0.876 against 0.8 of one
    token; second: 0.2 - 0.1 against nothing; third may only ask the second lookup."""
    case = Enumeration(
        [
            offer("ngram", [*powers([0.6, 0.05]), [0.9] * 3], 0.0, [True, True, False]),
            offer("suffix", [[0.9, 0.05, 0.0], [0.2, 0.04, 0.0], [0.1, 0.0, 0.0]], 0.0),
        ],
        1.0 + 0.01 * np.arange(12),
    )
    assert choose(case, DrafterChooser(), 0.1) == (0, 1, 1)


def test_a_model_is_shared_or_not_asked_at_all() -> None:
    """A draft step of 0.5 s for 0.9 accepted tokens, beside a step of 1 s. One sequence: 1.9 / 1.5
    = 1.27, lookup gives 1.4 / 1. Two: 3.8 / 1.5 = 2.53 against 2.8. Four: 7.6 / 1.5 = 5.07 against
    5.6 with one draft token each; a lookup of 0.1 loses from two sequences on."""
    for num, lookup, winner in ((1, 0.4, 1), (4, 0.4, 1), (1, 0.1, 0), (4, 0.1, 0)):
        case = Enumeration(
            [
                offer("draft", [[0.9, 0.0, 0.0]] * num, 0.5),
                offer("ngram", [[lookup, 0.0, 0.0]] * num, 0.0),
            ],
            np.ones(3 * num + 3),
        )
        assert choose(case, settled(case)) == (winner,) * num
        assert case.best((winner,) * num)[0] == pytest.approx(case.best_of_all())


def test_a_model_takes_only_those_to_whom_it_is_worth_more() -> None:
    """Three sequences of 0.9 pay for the draft; the fourth is copied better (0.95 against 0.9)."""
    case = Enumeration(
        [
            offer("draft", powers([0.9] * 4), 0.1),
            offer("ngram", powers([0.1, 0.1, 0.1, 0.95]), 0.0),
        ],
        np.ones(15),
    )
    assert choose(case, settled(case)) == (0, 0, 0, 1)
    assert case.best((0, 0, 0, 1))[0] == pytest.approx(case.best_of_all())


def test_of_equals_the_first_is_taken() -> None:
    for names in (("draft", "head"), ("ngram", "suffix")):
        step_s = 0.1 if names[0] == "draft" else 0.0
        case = Enumeration([offer(name, powers([0.7]), step_s) for name in names], np.ones(6))
        assert choose(case, settled(case)) == (0,)


def poor_draft() -> Enumeration:
    """A draft that loses, and that only the second sequence may ask."""
    offers = [
        offer("draft", powers([0.3, 0.3]), 1.0, [False, True]),
        offer("ngram", powers([0.7, 0.7]), 0.0),
    ]
    return Enumeration(offers, np.ones(9))


def test_a_new_model_is_given_a_few_steps_of_all_sequences() -> None:
    """Nothing is known of it but a prior; of lookup everything, as it is scored in any case."""
    case, chooser = poor_draft(), DrafterChooser()
    choices = [choose(case, chooser) for _ in range(FIRST_TURNS + 5)]
    assert choices == [(1, 0)] * FIRST_TURNS + [(1, 1)] * 5


def test_a_loser_has_a_turn_after_so_many_choices_with_one_sequence() -> None:
    case = poor_draft()
    case.offers[0].available[:] = True
    case.offers[0].survival[0] = case.offers[0].survival[1]
    chooser = DrafterChooser()
    choices = [choose(case, chooser) for _ in range(FIRST_TURNS + 3 * RETRY_AFTER)][FIRST_TURNS:]
    turns = [index + 1 for index, chosen in enumerate(choices) if chosen != (1, 1)]
    assert turns == [RETRY_AFTER, 2 * RETRY_AFTER, 3 * RETRY_AFTER]
    assert choices[RETRY_AFTER - 1] == (0, 1)


# -- in a simulated engine -------------------------------------------------------------------------


def drive(acceptance: dict[str, float], num_steps: int, batch: int = 1) -> Counter[str]:
    """Who was chosen in the second half of a simulated run in which both are always available."""
    controller = GoodputController(SpeculationConfig(max_num_speculative_tokens=MAX_K))
    draws = np.random.default_rng(1)
    chosen: Counter[str] = Counter()
    now_s = 0.0
    for step in range(num_steps):
        kv = 100 * batch
        states = [SequenceState(i, 100, MAX_K, None, BOTH[0]) for i in range(batch)]
        state = BatchState(states, 0, kv, now_s)
        for sequence, name in zip(
            states, controller.choose_drafters(state, [BOTH] * batch), strict=True
        ):
            sequence.drafter = name
        ks = controller.plan(state)
        if step >= num_steps // 2:
            chosen.update(s.drafter for s in states)
        results = [
            outcome(sequence, k, acceptance, draws) for sequence, k in zip(states, ks, strict=True)
        ]
        depth = max((k for s, k in zip(states, ks, strict=True) if s.drafter == "draft"), default=0)
        run_s = RUN_S + ROW_S * (sum(ks) + batch - 1)
        step_s = run_s + DRAFT_S * depth
        now_s += step_s
        controller.observe(
            StepResult(sum(ks) + batch, 0, kv, DRAFT_S * depth, run_s, step_s, results, now_s)
        )
    return chosen


def outcome(
    sequence: SequenceState, k: int, acceptance: dict[str, float], draws: np.random.Generator
) -> SequenceResult:
    """Lookup is compared with every committed token, whoever proposed."""
    right = {
        name: int(np.argmin(np.append(draws.random(k + 1) < acceptance[name], False)))
        for name in BOTH
    }
    accepted = min(right[sequence.drafter], k)
    scored = (Scored("ngram", accepted + 1, min(right["ngram"], accepted + 1)),)
    return SequenceResult(
        sequence.seq_id, sequence.drafter, k, k, accepted, accepted + 1, False, scored
    )


@pytest.mark.parametrize(
    ("acceptance", "better"),
    [
        pytest.param({"draft": 0.92, "ngram": 0.2}, "draft", id="a good draft"),
        pytest.param({"draft": 0.6, "ngram": 0.7}, "ngram", id="a lookup that hits"),
    ],
)
def test_the_better_drafter_is_found(acceptance: dict[str, float], better: str) -> None:
    chosen = drive(acceptance, 300)
    assert chosen[better] >= 0.85 * chosen.total()


def test_a_batch_shares_the_drafts_passes() -> None:
    """Eight sequences pay one deep draft between them: what loses alone, 34 against 36 tokens per
    second, wins together, 214 against 185."""
    acceptance = {"draft": 0.95, "ngram": 0.5}
    alone = drive(acceptance, 400)
    assert alone["ngram"] > 0.6 * alone.total()
    together = drive(acceptance, 200, batch=8)
    assert together["draft"] > 0.8 * together.total()


def test_before_anything_is_measured_the_preferred_one_proposes() -> None:
    controller = GoodputController(SpeculationConfig())
    states = [SequenceState(i, 10, MAX_K, None, "draft") for i in range(3)]
    options = [BOTH, ("ngram",), ()]
    chosen = controller.choose_drafters(BatchState(states, 0, 30, 0.0), options)
    assert chosen == ["draft", "ngram", None]
