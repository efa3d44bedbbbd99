"""Incremental detokenisation against the tokenizer's own `decode` of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.engine.detokenizer import IncrementalDetokenizer
from specdec.model.token_bytes import TokenBytes
from tests.tokenizers_of_all_kinds import KINDS, byte_level, sentencepiece

REPLACEMENT = "\ufffd"
SPECIAL = 256
BYTE_LEVEL = byte_level()
VOCABULARY = TokenBytes(BYTE_LEVEL)
SENTENCEPIECE = sentencepiece()
any_ids = st.lists(st.integers(0, 258), max_size=80)


def encode(text: str) -> list[int]:
    return BYTE_LEVEL.encode(text, add_special_tokens=False).ids


def streamed(detokenizer: IncrementalDetokenizer, ids: list[int]) -> str:
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()


@given(any_ids, st.booleans())
def test_any_bytes_come_out_as_the_tokenizer_decodes_them(ids: list[int], skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, encode("the prompt"), skip)
    assert streamed(detokenizer, ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(st.text(max_size=40), st.text(max_size=10))
def test_no_half_character_is_ever_returned(text: str, prompt: str) -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, encode(prompt), True)
    returned = ""
    for num_bytes, token_id in enumerate(encode(text), start=1):
        returned += detokenizer.push(token_id)
        whole = text.encode()[:num_bytes].decode(errors="ignore")
        assert returned == whole  # every complete character at once, and nothing else
    assert returned + detokenizer.flush() == text


def test_four_byte_character_waits_for_its_last_token() -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, [], True)
    deltas = [detokenizer.push(token_id) for token_id in encode("a\U0001f600b")]
    assert deltas == ["a", "", "", "", "\U0001f600", "b"]


def test_unfinished_character_is_flushed_as_replacement() -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, [], True)
    assert [detokenizer.push(token_id) for token_id in encode("\u20ac")[:2]] == ["", ""]
    assert detokenizer.flush() == REPLACEMENT


def test_a_prompt_that_ends_inside_a_character_lends_no_bytes() -> None:
    head, *tail = encode("\u20ac")
    detokenizer = IncrementalDetokenizer(VOCABULARY, [head], True)
    assert streamed(detokenizer, tail) == BYTE_LEVEL.decode(tail)


@pytest.mark.parametrize("first_id", [0, 1], ids=["byte-level", "sentencepiece"])
def test_bytes_that_can_never_be_text_are_returned_at_once(first_id: int) -> None:
    """Continuation bytes for ever: the text flows, and nothing grows."""
    tokenizer = BYTE_LEVEL if first_id == 0 else SENTENCEPIECE
    token_id = 1 + 0x80 if first_id else encode("\u20ac")[1]
    detokenizer = IncrementalDetokenizer(TokenBytes(tokenizer), [], True)
    for _ in range(8000):
        assert detokenizer.push(token_id) == REPLACEMENT
    assert detokenizer.flush() == ""


@given(st.binary(max_size=60))
def test_byte_fallback_decodes_as_utf8_does(raw: bytes) -> None:
    """Where a run of bytes is no text, the valid characters in it are kept."""
    detokenizer = IncrementalDetokenizer(TokenBytes(SENTENCEPIECE), [], True)
    text = streamed(detokenizer, [1 + byte for byte in raw])
    assert text == raw.decode(errors="replace").removeprefix(" ")


@given(st.lists(st.integers(0, 258), max_size=200))
def test_at_most_three_bytes_are_held(ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, [], True)
    for token_id in ids:
        detokenizer.push(token_id)
        held, _ = detokenizer._decoder.getstate()
        assert len(held) <= 3


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@settings(max_examples=40)
@given(prompt=st.lists(st.integers(0, 300), max_size=10), ids=st.lists(st.integers(0, 300)))
def test_output_continues_its_prompt(tokenizer, prompt: list[int], ids: list[int]) -> None:
    """prompt + output reads as one text: spaces that a decoder strips at a start stay inside."""
    known = tokenizer.decode(prompt)
    whole = tokenizer.decode(prompt + ids)
    if REPLACEMENT in known + whole:  # bytes that are no text are another test's
        return
    detokenizer = IncrementalDetokenizer(TokenBytes(tokenizer), prompt, True)
    assert known + streamed(detokenizer, ids) == whole


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_on_request(skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(VOCABULARY, [], skip)
    ids = [*encode("hi"), SPECIAL, *encode("!")]
    text = "".join(detokenizer.push(token_id) for token_id in ids)
    assert text == ("hi!" if skip else "hi<|end|>!")
