"""Philox against Random123's known answers, and the draws made of it against their laws."""

import json
import math
from pathlib import Path

import pytest
import torch

from specdec.sampling.philox import (
    MAX_NOISE,
    MIN_NOISE,
    Domain,
    gumbel_noise,
    gumbel_noise_row,
    philox4x32,
    uniform,
    uniform_integer,
)

CPU = torch.device("cpu")
VECTORS = json.loads(
    (Path(__file__).parents[3] / "protos" / "philox4x32_10.json").read_text(encoding="utf-8")
)


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize("vector", VECTORS["block"])
def test_known_answers_as_integers_and_as_tensors(vector):
    counter, key = words(vector["counter"]), words(vector["key"])
    assert philox4x32(counter, key) == words(vector["output"])
    as_tensors = philox4x32(
        tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key)
    )
    assert tuple(int(word) for word in as_tensors) == words(vector["output"])


def test_random123_vectors_are_in_the_published_file():
    published = {vector["output"] for vector in VECTORS["block"]}
    assert {
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    } <= published


@pytest.mark.parametrize("vector", VECTORS["uniform"])
def test_published_uniforms(vector):
    draw = uniform(
        vector["seed"],
        Domain[vector["domain"]],
        vector["position"],
        vector["index"],
        vector["round"],
    )
    assert draw == float.fromhex(vector["value"])


@pytest.mark.parametrize("vector", VECTORS["gumbel"])
def test_published_gumbel_noise(vector):
    noise = gumbel_noise(vector["seed"], vector["position"], torch.tensor([vector["token_id"]]))
    assert math.isclose(float(noise), vector["value"], rel_tol=1e-14)


def test_noise_of_a_subset_is_bitwise_the_noise_of_the_row():
    row = gumbel_noise_row(11, 1000, 1001, CPU)
    ids = torch.tensor([0, 1, 2, 77, 500, 999, 1000])
    assert torch.equal(gumbel_noise(11, 1000, ids), row[ids])
    for token_id in ids.tolist():
        assert torch.equal(gumbel_noise(11, 1000, torch.tensor([token_id])), row[[token_id]])


def test_noise_of_a_row_does_not_depend_on_the_vocabulary_size():
    assert torch.equal(gumbel_noise_row(3, 5, 100, CPU), gumbel_noise_row(3, 5, 4097, CPU)[:100])


def test_draws_differ_by_every_part_of_their_key():
    base = (7, Domain.ACCEPTANCE, 3, 2, 1)
    others = [
        (8, Domain.ACCEPTANCE, 3, 2, 1),
        (7, Domain.RESIDUAL, 3, 2, 1),
        (7, Domain.ACCEPTANCE, 4, 2, 1),
        (7, Domain.ACCEPTANCE, 3, 3, 1),
        (7, Domain.ACCEPTANCE, 3, 2, 2),
        (7 + 2**32, Domain.ACCEPTANCE, 3, 2, 1),
    ]
    draws = {uniform(*key) for key in [base, *others]}
    assert len(draws) == len(others) + 1
    assert uniform(-1, Domain.RESIDUAL, 0) == uniform(2**64 - 1, Domain.RESIDUAL, 0)


def test_uniforms_are_uniform():
    draws = torch.tensor(
        [uniform(5, Domain.ACCEPTANCE, position) for position in range(20_000)],
        dtype=torch.float64,
    )
    counts = torch.histc(draws, bins=20, min=0, max=1)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_square < 43.8  # 0.999 quantile with 19 degrees of freedom


def test_uniform_integers_cover_their_range_evenly():
    counts = [0] * 7
    for position in range(14_000):
        counts[uniform_integer(7, 5, Domain.PROPOSAL, position)] += 1
    assert sum((count - 2000) ** 2 / 2000 for count in counts) < 22.5  # 0.999, 6 degrees


def test_noise_follows_the_gumbel_law_within_its_bounds():
    noise = gumbel_noise_row(42, 0, 200_000, CPU).sort().values
    law = torch.exp(-torch.exp(-noise))
    empirical = (torch.arange(len(noise), dtype=torch.float64) + 0.5) / len(noise)
    # Kolmogorov-Smirnov, 0.999 quantile.
    assert float((law - empirical).abs().max()) < 1.95 / math.sqrt(len(noise))
    assert MIN_NOISE < float(noise[0]) < float(noise[-1]) < MAX_NOISE


def test_bounds_hold_for_the_extreme_uniforms():
    smallest, largest = 2.0**-53, 1 - 2.0**-53
    assert -math.log(-math.log1p(-smallest)) <= MAX_NOISE
    assert -math.log(-math.log1p(-largest)) >= MIN_NOISE
