"""Acceptance of one token, against sums by hand, the double loop, and areas on a triangle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.simulation.characterization.overlap import (
    RULES,
    Rule,
    coupled_mass,
    entropy,
    overlap,
    sparse_probs,
)

TARGET = np.array([0.5, 0.3, 0.2, 0.0])
DRAFT = np.array([0.2, 0.6, 0.0, 0.2])


def expected(target, draft, rule: Rule, max_law_entries: int = 128) -> float:
    found = overlap(np.asarray(target), np.asarray(draft), None, max_law_entries)
    return found.expected[RULES.index(rule)]


def match_by_double_loop(target, draft) -> np.ndarray:
    mass = np.zeros(len(target))
    for i in np.flatnonzero((target > 0) & (draft > 0)):
        mass[i] = 1 / sum(
            max(target[j] / target[i], draft[j] / draft[i]) for j in range(len(target))
        )
    return mass


def match_by_area(target, draft, steps: int = 1500) -> np.ndarray:
    """Both sides draw argmin of E / weight with the same exponentials E. Only the ratios of the
    three matter, and those are uniform on a triangle: count its points by their winners."""
    edge = (np.arange(steps) + 0.5) / steps
    first, second = (axis.ravel() for axis in np.meshgrid(edge, edge))
    inside = first + second < 1
    noise = np.stack([first, second, 1 - first - second])[:, inside]
    of_target = (noise / np.asarray(target)[:, None]).argmin(axis=0)
    of_draft = (noise / np.asarray(draft)[:, None]).argmin(axis=0)
    return np.array([np.mean((of_target == i) & (of_draft == i)) for i in range(3)])


def test_maximal_acceptance_is_the_shared_mass():
    # min by token: 0.2 + 0.3 + 0 + 0; TV = 0.5 by the halved differences 0.3 + 0.3 + 0.2 + 0.2.
    assert expected(TARGET, DRAFT, Rule.MAXIMAL) == pytest.approx(0.5)


def test_greedy_draft_is_accepted_with_the_targets_probability_of_its_token():
    assert expected(TARGET, DRAFT, Rule.GREEDY) == pytest.approx(0.3)


def test_coupled_match_by_hand():
    # Token 0: 1 / (1 + max(.6, 3) + .4 + 1) ; token 1: 1 / (max(5/3, 1/3) + 1 + 2/3 + 1/3).
    assert expected(TARGET, DRAFT, Rule.COUPLED) == pytest.approx(1 / 5.4 + 1 / (11 / 3))


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)),
        ((0.8, 0.1, 0.1), (0.4, 0.35, 0.25)),
        ((0.6, 0.3, 0.1), (0.6, 0.3, 0.1)),
    ],
)
def test_coupled_match_is_the_share_of_noise_on_which_both_agree(target, draft):
    # A grid of 1500 steps is off by about its boundary cells: 3 / 1500.
    np.testing.assert_allclose(
        coupled_mass(np.array(target), np.array(draft)), match_by_area(target, draft), atol=2e-3
    )


weights = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.sampled_from([0.25, 0.5])),
    min_size=2,
    max_size=12,
)


@st.composite
def pairs(draw):
    """Two laws over the same tokens, with zeros and ties, each with some mass."""
    target = np.array(draw(weights))
    size = len(target)
    draft = np.array(draw(st.lists(st.sampled_from(target), min_size=size, max_size=size)))
    shift = draw(st.lists(st.floats(0, 0.5), min_size=size, max_size=size))
    target[0] = max(target[0], 0.1)
    draft = draft + np.array(shift) * (draft > 0)
    draft[-1] = max(draft[-1], 0.1)
    return target / target.sum(), draft / draft.sum()


@given(pairs())
def test_sorted_sums_equal_the_double_loop(pair):
    target, draft = pair
    support = (target > 0) | (draft > 0)
    np.testing.assert_allclose(
        coupled_mass(target[support], draft[support]),
        match_by_double_loop(target, draft)[support],
        rtol=1e-9,
        atol=1e-15,
    )


@given(pairs())
def test_bounds_enclose_every_rule(pair):
    target, draft = pair
    found = overlap(target, draft, None, max_law_entries=128)
    by_rule = dict(zip(RULES, found.expected, strict=True))
    slack = 1e-12
    assert found.coupled_bound <= by_rule[Rule.COUPLED] + slack
    assert by_rule[Rule.COUPLED] <= by_rule[Rule.MAXIMAL] + slack
    distance = np.abs(target - draft).sum() / 2
    assert by_rule[Rule.MAXIMAL] == pytest.approx(1 - distance)
    assert found.coupled_bound == pytest.approx((1 - distance) / (1 + distance))


@given(pairs())
def test_acceptance_given_the_token_averages_to_acceptance(pair):
    target, draft = pair
    total = np.zeros(len(RULES))
    for token_id in np.flatnonzero(target > 0):
        found = overlap(target, draft, int(token_id), max_law_entries=2)
        total += target[token_id] * np.array(found.given_token)
        assert all(0 <= value <= 1 for value in found.given_token)
    np.testing.assert_allclose(total, found.expected, atol=1e-9)


def test_sparse_law_costs_at_most_the_mass_left_out():
    draft = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    sent = sparse_probs(draft, max_law_entries=2)
    np.testing.assert_allclose(sent, [4 / 7, 3 / 7, 0, 0, 0], atol=1 / 65535)
    # Against a target equal to the draft: min(4/7, .4) + min(3/7, .3) = the mass kept.
    assert expected(draft, draft, Rule.SPARSE, max_law_entries=2) == pytest.approx(0.7, abs=1e-4)
    assert expected(draft, draft, Rule.MAXIMAL) == pytest.approx(1.0)


def test_one_hot_laws_agree_or_not_under_every_rule():
    one, other = np.eye(3)[0], np.eye(3)[2]
    assert overlap(one, one, 0, 8).expected == (1.0,) * len(RULES)
    assert overlap(one, other, 0, 8).expected == (0.0,) * len(RULES)
    assert overlap(one, other, 0, 8).given_token == (0.0,) * len(RULES)


def test_a_draft_that_draws_nothing_may_exceed_the_bound_of_one_that_draws():
    target, draft = (1.0, 0.0), (0.6, 0.4)
    assert expected(target, draft, Rule.MAXIMAL) == pytest.approx(0.6)
    assert expected(target, draft, Rule.GREEDY) == 1.0


def test_tiny_probabilities_do_not_overflow():
    target, draft = np.array([1.0, 1e-300]), np.array([1e-300, 1.0])
    mass = coupled_mass(target, draft)
    assert np.isfinite(mass).all()
    assert mass.sum() < 1e-250


def test_entropy_of_a_uniform_law_is_the_log_of_its_size():
    assert entropy(np.array([0.25, 0.25, 0.25, 0.25, 0.0])) == pytest.approx(np.log(4))
