"""How many entries a gRPC message's lists may have, looked at before one of them is.

Protobuf has parsed the message by then, in the proxy, which takes no larger one than Serve is told
to (`launch.py`); what follows would walk over the lists in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from deployments.prompts import MAX_MESSAGES
from deployments.target import TargetDescription
from specdec.errors import InvalidRequestError
from specdec.params import BAD_WORD_FORMS, MAX_BAD_WORDS, MAX_STOP_STRINGS
from specdec.v1 import inference_pb2 as pb


def check_lengths(wire: pb.GenerateRequest, limits: TargetDescription) -> None:
    """Raises InvalidRequestError that names the first list that is too long."""
    for field, length, most in _lengths(wire, limits):
        if length > most:
            raise InvalidRequestError(
                f"{field}: must have at most {most} entries, got {length}", field=field
            )


def _lengths(wire: pb.GenerateRequest, limits: TargetDescription) -> Iterator[tuple[str, int, int]]:
    """(field, entries, the most that are allowed)"""
    sampling, vocab_size = wire.sampling, limits.vocab_size
    yield "prompt", len(wire.token_ids.token_ids), limits.max_model_len
    yield "messages", len(wire.chat.messages), MAX_MESSAGES
    yield "bad_words", len(wire.bad_words), MAX_BAD_WORDS
    yield "bad_words", len(sampling.bad_words_token_ids), MAX_BAD_WORDS * BAD_WORD_FORMS
    yield "stop", len(sampling.stop), MAX_STOP_STRINGS
    yield "logit_bias", len(sampling.logit_bias), vocab_size
    yield "stop_token_ids", len(sampling.stop_token_ids), vocab_size
    yield "allowed_token_ids", len(sampling.allowed_token_ids.token_ids), vocab_size
