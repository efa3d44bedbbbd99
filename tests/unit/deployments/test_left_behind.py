"""What requests leave behind once they have ended: little, whatever they brought."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass

import pytest

from deployments.auth import MAX_CACHE_SALT_CHARS, owner_of, partition_of, traffic_class_of
from deployments.gateway_service import MAX_REQUEST_ID_CHARS, MAX_RESPONSE_ID_CHARS
from specdec.config import SpeculationConfig
from specdec.engine.explanations import MAX_REQUESTS, Explanations
from specdec.engine.request import GenerateRequest, Limits, make_sequence
from specdec.errors import InvalidRequestError
from specdec.params import SamplingParams
from specdec.speculation.controller.acceptance import MAX_CLASSES

MAX_BYTES_OF_ONE = 2048
LIMITS = Limits(vocab_size=100, max_model_len=64, eos_token_ids=frozenset())


def deep_size(value, seen=None) -> int:
    """Bytes of an object and all that it holds, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return size + sum(deep_size(part, seen) for part in parts)


def worst_request(number: int) -> GenerateRequest:
    """The longest of everything that a client may name."""
    partition = partition_of("t" * 64, str(number).rjust(MAX_CACHE_SALT_CHARS, "s"))
    return GenerateRequest(
        request_id=str(number).rjust(MAX_RESPONSE_ID_CHARS, "r"),
        prompt_token_ids=[1] * 32,
        params=SamplingParams(max_tokens=4, stop=("x" * 100,), bad_words_token_ids=((1, 2),)),
        partition=partition,
        traffic_class=traffic_class_of(partition),
    )


def test_ended_requests_keep_little_each():
    explanations, config = Explanations(), SpeculationConfig(drafters=())
    for number in range(2 * MAX_REQUESTS):
        sequence = make_sequence(worst_request(number), number, config, LIMITS, now_s=0.0)
        explanations.begin(sequence)
        sequence.stats.num_steps = 1
        explanations.finish(sequence, "stop")
    assert deep_size(explanations) < MAX_REQUESTS * MAX_BYTES_OF_ONE


def test_the_measure_sees_what_is_held():
    """3.8 MB of salt in each of 1000 is what it must see."""
    assert deep_size({1: "x" * 3_800_000}) > 3_800_000
    explanations = Explanations()
    request = worst_request(0)
    request.partition = "x" * 3_800_000
    sequence = make_sequence(request, 0, SpeculationConfig(drafters=()), LIMITS, now_s=0.0)
    explanations.begin(sequence)
    sequence.stats.num_steps = 1
    explanations.finish(sequence, "stop")
    assert deep_size(explanations) > 3_800_000


def test_classes_of_traffic_are_few_and_their_names_short():
    partition = partition_of("t" * 64, "s" * MAX_CACHE_SALT_CHARS)
    assert traffic_class_of(partition) == owner_of(partition) == "t" * 64
    assert MAX_CLASSES * len(partition) < 64 * 2**10


@pytest.mark.parametrize("length", [MAX_CACHE_SALT_CHARS + 1, 3_800_000])
def test_a_longer_salt_is_refused_by_name(length):
    with pytest.raises(InvalidRequestError, match="cache_salt: at most") as error:
        partition_of("tenant", "x" * length)
    assert error.value.field == "cache_salt"
    assert len(error.value.message) < 200


def test_the_id_of_a_response_has_room_for_a_prefix_and_a_number():
    assert len("chatcmpl-") + MAX_REQUEST_ID_CHARS + len("-127") < MAX_RESPONSE_ID_CHARS
