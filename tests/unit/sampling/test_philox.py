"""Philox against Random123's known answers, and the draws made of it against their laws."""

import json
import math
from pathlib import Path

import pytest
import torch

from specdec.sampling.philox import (
    Domain,
    gumbel_noise,
    gumbel_uniform_floor,
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


def test_noise_of_a_token_is_bitwise_the_same_in_any_company():
    everyone = gumbel_noise(11, 1000, torch.arange(1001))
    ids = torch.tensor([0, 1, 2, 77, 500, 999, 1000])
    assert torch.equal(gumbel_noise(11, 1000, ids), everyone[ids])
    for token_id in ids.tolist():
        assert torch.equal(gumbel_noise(11, 1000, torch.tensor([token_id])), everyone[[token_id]])


def test_uniform_floor_bounds_the_uniform_behind_the_noise():
    floor = gumbel_uniform_floor(11, 1000, 1001, CPU)
    uniforms = -torch.expm1(-torch.exp(-gumbel_noise(11, 1000, torch.arange(1001))))
    assert bool((floor > 0).all())
    assert bool((floor <= uniforms + 1e-15).all())
    assert bool((uniforms - floor < 2.0**-32).all())
    assert float((uniforms - floor).std()) > 2.0**-35  # the lower bits are used


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


def test_noise_follows_the_gumbel_law():
    noise = gumbel_noise(42, 0, torch.arange(200_000)).sort().values
    law = torch.exp(-torch.exp(-noise))
    empirical = (torch.arange(len(noise), dtype=torch.float64) + 0.5) / len(noise)
    # Kolmogorov-Smirnov, 0.999 quantile.
    assert float((law - empirical).abs().max()) < 1.95 / math.sqrt(len(noise))
