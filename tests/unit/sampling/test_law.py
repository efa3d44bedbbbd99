"""The sparse draft law: quantisation, sampling and the checks on laws from outside."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.sampling.law import TOTAL_WEIGHT, SparseLaw

DISTRIBUTIONS = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=60).filter(
    lambda values: sum(values) > 1e-3
)


def law(ids, weights):
    return SparseLaw(np.array(ids, np.uint32), np.array(weights, np.uint16))


@settings(max_examples=200, deadline=None)
@given(values=DISTRIBUTIONS, max_entries=st.integers(1, 64), min_mass=st.floats(0.1, 1))
def test_law_is_the_likeliest_tokens_rounded_to_65535ths(values, max_entries, min_mass):
    probs = np.array(values) / sum(values)
    result = SparseLaw.from_probs(probs, max_entries, min_mass)
    assert result.validate(len(probs)) is None
    assert result.ids.dtype == np.uint32
    assert result.weights.dtype == np.uint16
    assert len(result.ids) <= max_entries
    listed = probs[result.ids]
    others = np.delete(probs, result.ids)
    renormalised = listed / listed.sum()
    assert np.abs(result.probs - renormalised).max() < 2 / TOTAL_WEIGHT
    # Whatever is left out is less likely, or rounds to nothing.
    worth_listing = others[others > listed.sum() * 2 / TOTAL_WEIGHT]
    assert len(result.ids) == max_entries or listed.sum() >= min_mass - 1e-3 or not len(others)
    assert not len(worth_listing) or worth_listing.max() <= listed.min() + 1e-15


def test_entries_end_where_the_mass_suffices():
    probs = np.array([0.02, 0.5, 0.3, 0.1, 0.08])
    assert SparseLaw.from_probs(probs, 5, 0.75).ids.tolist() == [1, 2]
    assert SparseLaw.from_probs(probs, 5, 0.81).ids.tolist() == [1, 2, 3]
    assert SparseLaw.from_probs(probs, 2, 0.99).ids.tolist() == [1, 2]


def test_equally_likely_tokens_are_taken_by_id():
    assert SparseLaw.from_probs(np.full(10, 0.1), 3).ids.tolist() == [0, 1, 2]


def test_left_over_units_go_to_the_largest_remainders():
    # 65535 / 3 = 21845 exactly; 65535 * (0.5, 0.25, 0.25) = 32767.5, 16383.75, 16383.75.
    assert SparseLaw.from_probs(np.full(3, 1 / 3), 3).weights.tolist() == [21845] * 3
    quarters = SparseLaw.from_probs(np.array([0.5, 0.25, 0.25]), 3, 1.0)
    assert quarters.weights.tolist() == [32767, 16384, 16384]


def test_a_certain_token_fits():
    certain = SparseLaw.from_probs(np.array([0.0, 1.0, 0.0]), 3)
    assert (certain.ids.tolist(), certain.weights.tolist()) == ([1], [TOTAL_WEIGHT])
    assert {certain.sample(integer) for integer in (0, 1, TOTAL_WEIGHT - 1)} == {1}
    one_hot = SparseLaw.one_hot(1)
    assert (one_hot.ids.tolist(), one_hot.prob(1), one_hot.prob(0)) == ([1], 1.0, 0.0)


def test_every_integer_is_sampled_as_often_as_the_weights_say():
    result = SparseLaw.from_probs(np.array([0.2, 0.0, 0.5, 0.299, 0.001]), 5, 1.0)
    counts = np.bincount([result.sample(integer) for integer in range(TOTAL_WEIGHT)], minlength=5)
    for token_id in range(5):
        assert counts[token_id] == result.prob(token_id) * TOTAL_WEIGHT
    assert counts.sum() == TOTAL_WEIGHT


@pytest.mark.parametrize("token_id", [0, 4, 6, 1000, 2**31])
def test_probability_of_an_absent_token_is_zero(token_id):
    assert law([3, 5], [65534, 1]).prob(token_id) == 0


@pytest.mark.parametrize(
    ("ids", "weights", "reason"),
    [
        ([3, 5], [65534, 1], None),
        ([9], [65535], None),
        ([], [], "law_empty"),
        ([3], [65534, 1], "law_length_mismatch"),
        ([5, 3], [65534, 1], "law_ids_not_ascending"),
        ([3, 3], [65534, 1], "law_ids_not_ascending"),
        ([3, 10], [65534, 1], "law_id_out_of_range"),
        ([2**32 - 1], [65535], "law_id_out_of_range"),
        ([3, 5], [65535, 0], "law_zero_weight"),
        ([3, 5], [65534, 2], "law_weights_do_not_sum"),
        ([3, 5], [1, 1], "law_weights_do_not_sum"),
        (range(3), [65535, 65535, 1], "law_weights_do_not_sum"),  # sums to 65535 modulo 2**16
    ],
)
def test_validation_names_the_fault(ids, weights, reason):
    assert law(ids, weights).validate(10) == reason
