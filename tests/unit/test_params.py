"""Values that a caller may not send: too many, too long, of the wrong kind, too long to repeat."""

from __future__ import annotations

import pytest

from specdec import params
from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams, SpeculationParams, shown, validate_prompt

VOCAB_SIZE = 100
PLAIN = ("max_tokens", "min_tokens")


def refused(**values) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**values).validate(VOCAB_SIZE)
    return error.value


TOO_MANY = [
    ("allowed_token_ids", "allowed_token_ids", (1,) * (VOCAB_SIZE + 1)),
    ("stop_token_ids", "stop_token_ids", (1,) * 1025),
    ("logit_bias", "logit_bias", dict.fromkeys(range(1025), 0.0)),
    ("stop", "stop", ("x" * 1025,)),
    ("stop", "stop", ("x",) * 17),
    ("bad_words_token_ids", "bad_words", ((1,) * 100,) * 101),
    ("bad_words_token_ids", "bad_words", ((1,),) * 2001),
    ("bad_words_token_ids", "bad_words", ((1,) * 101,)),
]


@pytest.mark.parametrize(("name", "field", "value"), TOO_MANY, ids=lambda v: str(v)[:30])
def test_too_many_entries_are_refused(name, field, value):
    error = refused(**{name: value})
    assert error.field == field
    assert "at most" in error.message


def test_as_many_entries_as_the_vocabulary_has_are_allowed():
    every = tuple(range(VOCAB_SIZE))
    SamplingParams(
        allowed_token_ids=every,
        stop_token_ids=every,
        logit_bias=dict.fromkeys(every, 1.0),
        stop=("x" * 1024,) * 16,
        bad_words_token_ids=((1,) * 5,) * 2000,
    ).validate(VOCAB_SIZE)


@pytest.mark.parametrize(
    "value", [5, "12", None, {1: 2}, object()], ids=["number", "text", "none", "mapping", "object"]
)
@pytest.mark.parametrize(
    ("name", "field"),
    [("stop_token_ids", "stop_token_ids"), ("bad_words_token_ids", "bad_words"), ("stop", "stop")],
)
def test_what_is_no_list_is_refused_by_name(name, field, value):
    assert refused(**{name: value}).field == field


def test_allowed_token_ids_and_logit_bias_of_the_wrong_kind_are_refused_by_name():
    assert refused(allowed_token_ids=5).field == "allowed_token_ids"
    assert refused(logit_bias=[1, 2]).field == "logit_bias"
    assert refused(bad_words_token_ids=(5,)).field == "bad_words"


@pytest.mark.parametrize(
    "value",
    [10**400, 10**5000, -(10**400), float("nan"), float("inf")],
    ids=["1e400", "1e5000", "-1e400", "nan", "inf"],
)
def test_numbers_beyond_a_float_are_refused_like_others(value):
    assert refused(temperature=value).field == "temperature"
    assert refused(max_tokens=value).field == "max_tokens"


HUGE = "x" * 1_000_000


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": HUGE},
        {"max_tokens": 10**4000},
        {"stop_token_ids": (HUGE,)},
        {"stop": HUGE},
        {"logit_bias": {HUGE: 1}},
        {"speculation": SpeculationParams(mode=HUGE)},
        {"speculation": SpeculationParams(verification=HUGE)},
        {"speculation": SpeculationParams(drafter=[HUGE])},
        {"speculation": SpeculationParams(explain=HUGE)},
    ],
    ids=lambda values: next(iter(values)),
)
def test_errors_repeat_little_of_what_was_sent(values):
    assert len(refused(**values).message) < 300


def test_an_unknown_key_is_named_in_short():
    with pytest.raises(InvalidRequestError) as error:
        SpeculationParams.from_mapping({HUGE: 1})
    assert len(error.value.message) < 300
    assert error.value.field == "speculation." + "x" * 80


def test_shown_keeps_short_values_whole():
    assert shown("fast") == "'fast'"
    assert shown(101) == "101"
    assert len(shown([HUGE] * 9)) == 80


def test_a_prompt_that_is_too_long_is_refused_before_its_ids_are_read():
    class Unread(list):
        def __iter__(self):
            raise AssertionError("read")

    with pytest.raises(InvalidRequestError, match="must fit the context"):
        validate_prompt(Unread([0] * 50), SamplingParams(), VOCAB_SIZE, max_model_len=50)


def test_a_long_list_is_not_looked_at_token_by_token(monkeypatch):
    monkeypatch.setattr(params, "_check_int", lambda name, *_: name in PLAIN or pytest.fail(name))
    every = tuple(range(VOCAB_SIZE)) * 100
    validate_prompt(every, SamplingParams(), VOCAB_SIZE, 100_000)


@pytest.mark.parametrize("wrong", [VOCAB_SIZE, -1, True, 1.0, "1", None])
def test_one_wrong_token_in_a_long_list_is_found(wrong):
    with pytest.raises(InvalidRequestError) as error:
        validate_prompt([*range(50), wrong, *range(50)], SamplingParams(), VOCAB_SIZE, 1000)
    assert error.value.field == "prompt"
    assert error.value.message.endswith(f"got {shown(wrong)}")
