"""Requests of random parameters, right and wrong, through the engine.

What is wrong is refused by name, before it costs anything and without a trace. What is right gives
the same text with speculation and without, and leaves a neighbour's text and the pool as they were.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams, SpeculationParams
from tests.fuzz.rounds import fuzz
from tests.fuzz.values import anything, scalar
from tests.unit.engine.engine_harness import OFF, make_engine, random_prompt, request, run
from tests.unit.engine.engine_harness import token_ids as ids_of

VOCAB_SIZE = 288
FIELDS = {field.name for field in dataclasses.fields(SamplingParams)}
WISHES = {field.name for field in dataclasses.fields(SpeculationParams)}
NEIGHBOUR = "neighbour"


@pytest.fixture(scope="module")
def engine(tiny_llama, tiny_draft, tiny_tokenizer):
    built = make_engine(tiny_llama, tiny_draft, drafters=("draft", "ngram"), num_blocks=128)
    yield built
    built.shutdown()


def some_ids(rng: random.Random, most: int) -> list[int]:
    return rng.sample(range(VOCAB_SIZE), rng.randint(1, most))


def sound(rng: random.Random) -> dict:
    """Parameters that are all allowed, each present now and then, at its edges more often."""
    makers = {
        "temperature": lambda: rng.choice((0, 0.0, 0.01, 0.7, 1.0, 2)),
        "top_k": lambda: rng.choice((-1, 0, 1, 2, 40, VOCAB_SIZE, 2**31 - 1)),
        "top_p": lambda: rng.choice((1e-9, 0.1, 0.9, 1, 1.0)),
        "min_p": lambda: rng.choice((0, 0.05, 0.5, 1)),
        "seed": lambda: rng.choice((0, -1, 7, 2**63 - 1, -(2**63))),
        "logit_bias": lambda: {i: rng.uniform(-100, 100) for i in some_ids(rng, 40)},
        "repetition_penalty": lambda: rng.choice((1e-6, 0.5, 1.3, 1e6)),
        "presence_penalty": lambda: rng.choice((-2, 0.5, 2)),
        "frequency_penalty": lambda: rng.choice((-2, 0.5, 2)),
        "min_tokens": lambda: rng.randint(0, 4),
        "bad_words_token_ids": lambda: tuple(
            tuple(some_ids(rng, 3)) for _ in range(rng.randint(1, 5))
        ),
        "allowed_token_ids": lambda: tuple(some_ids(rng, 60)),
        "stop": lambda: tuple(rng.sample(["the", "cat", "a", " ", "\ufffd", "zzz" * 9], 2)),
        "stop_token_ids": lambda: tuple(some_ids(rng, 9)),
        "ignore_eos": lambda: rng.random() < 0.5,
        "include_stop_str_in_output": lambda: rng.random() < 0.5,
        "skip_special_tokens": lambda: rng.random() < 0.5,
        "logprobs": lambda: rng.choice((0, 1, 5)),
        "prompt_logprobs": lambda: rng.choice((0, 2)),
    }
    chosen = {name: make() for name, make in makers.items() if rng.random() < 0.25}
    return {"max_tokens": rng.randint(4, 14), **chosen}


def some_speculation(rng: random.Random) -> SpeculationParams:
    drafter = rng.choice((None, "draft", "ngram"))
    if rng.random() < 0.3:
        return SpeculationParams(drafter=drafter, max_k=rng.choice((None, 0, 1, 3)))
    return SpeculationParams(mode="fixed", k=rng.choice((1, 2, 5, 8, 100)), drafter=drafter)


def corrupted(rng: random.Random, params: dict) -> dict:
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(sorted(FIELDS))
        params = {**params, name: scalar(rng) if rng.random() < 0.5 else anything(rng)}
    return params


def refusal(params: dict) -> InvalidRequestError | None:
    """How validation refuses; any other error than one that names a field is a bug."""
    try:
        SamplingParams(**params).validate(VOCAB_SIZE)
    except InvalidRequestError as error:
        return error
    return None


def is_refused(params: dict) -> bool:
    error = refusal(params)
    if error is not None:
        assert error.field is not None
        assert error.field.split(".")[0] in FIELDS | {"bad_words"}, error.field
        assert len(error.message) < 1000
    return error is not None


def test_wrong_parameters_are_refused_by_name():
    refused = 0

    def one_round(rng: random.Random) -> None:
        nonlocal refused
        params = corrupted(rng, sound(rng))
        wish = {name: scalar(rng) for name in WISHES if rng.random() < 0.3}
        if rng.random() < 0.3:
            params["speculation"] = SpeculationParams(**wish)
        refused += is_refused(params)

    fuzz(one_round, 800)
    assert refused, "nothing wrong was drawn"


def test_right_parameters_give_the_text_of_plain_decoding(engine):
    """Greedy and seeded: token for token."""

    def one_round(rng: random.Random) -> None:
        params = sound(rng)
        if params.get("temperature", 1.0) != 0:
            params.setdefault("seed", rng.randrange(2**32))
        if is_refused(params):
            return
        prompt = random_prompt(rng.randint(1, 24), rng.randrange(2**32))
        neighbour = request(
            random_prompt(9, rng.randrange(99)), NEIGHBOUR, temperature=0.0, max_tokens=12
        )
        plain = run(engine, [request(prompt, speculation=OFF, **params), neighbour])
        drafted = run(
            engine, [request(prompt, speculation=some_speculation(rng), **params), neighbour]
        )
        for name in ("r", NEIGHBOUR):
            assert ids_of(drafted[name]) == ids_of(plain[name])
            assert "".join(o.text for o in drafted[name]) == "".join(o.text for o in plain[name])
            assert drafted[name][-1].finish_reason == plain[name][-1].finish_reason

    fuzz(one_round, 60)


def test_unseeded_requests_end_and_leave_nothing(engine):
    """Block and rejection verification: their text is random, their books are not."""

    def one_round(rng: random.Random) -> None:
        params = {**sound(rng), "temperature": rng.choice((0.3, 1.0, 2.0))}
        params.pop("seed", None)
        wish = dataclasses.replace(
            some_speculation(rng), verification=rng.choice(("auto", "block", "rejection"))
        )
        if is_refused({**params, "speculation": wish}):
            return
        prompt = random_prompt(rng.randint(1, 24), rng.randrange(2**32))
        outputs = run(engine, [request(prompt, speculation=wish, **params)])["r"]
        assert outputs[-1].finish_reason in ("stop", "length")
        made = ids_of(outputs)
        assert len(made) <= params["max_tokens"]
        assert all(0 <= token_id < VOCAB_SIZE for token_id in made)
        allowed = params.get("allowed_token_ids")
        assert allowed is None or set(made) <= set(allowed)

    fuzz(one_round, 50)
