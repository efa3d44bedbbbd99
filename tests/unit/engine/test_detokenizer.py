"""Incremental detokenisation against the tokenizer's own `decode` of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specdec.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer

SPECIAL = 256


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges but one: id of a byte = its rank in the sorted alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    assert tokenizer.token_to_id("<|end|>") == SPECIAL
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama-2 style: word pieces with a space mark, single bytes for everything else."""
    vocab = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocab += ["\u2581", "\u2581the", "\u2581cat", "s", ".", "\u2581\u2581"]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(vocab)}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
any_ids = st.lists(st.integers(0, SPECIAL), max_size=80)


def encode(text: str) -> list[int]:
    return BYTE_LEVEL.encode(text, add_special_tokens=False).ids


@given(any_ids, st.booleans())
def test_any_bytes_come_out_as_the_tokenizer_decodes_them(ids: list[int], skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, encode("the prompt"), skip)
    text = "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()
    assert text == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(st.text(max_size=40), st.text(max_size=10))
def test_no_half_character_is_ever_returned(text: str, prompt: str) -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, encode(prompt.rstrip(REPLACEMENT)), True)
    text = text.replace(REPLACEMENT, "")
    returned = ""
    for num_bytes, token_id in enumerate(encode(text), start=1):
        returned += detokenizer.push(token_id)
        whole = text.encode()[:num_bytes].decode(errors="ignore")
        assert returned == whole  # every complete character at once, and nothing else
    assert returned + detokenizer.flush() == text


def test_four_byte_character_waits_for_its_last_token() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], True)
    deltas = [detokenizer.push(token_id) for token_id in encode("a\U0001f600b")]
    assert deltas == ["a", "", "", "", "\U0001f600", "b"]


def test_unfinished_character_is_flushed_as_replacement() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], True)
    assert [detokenizer.push(token_id) for token_id in encode("\u20ac")[:2]] == ["", ""]
    assert detokenizer.flush() == REPLACEMENT


def test_a_prompt_that_ends_inside_a_character_lends_no_bytes() -> None:
    head, *tail = encode("\u20ac")
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [head], True)
    text = "".join([detokenizer.push(token_id) for token_id in tail]) + detokenizer.flush()
    assert text == BYTE_LEVEL.decode(tail)


sentencepiece_pieces = st.lists(
    st.one_of(
        st.sampled_from([[SENTENCEPIECE.token_to_id(w)] for w in ("\u2581the", "\u2581cat", "s")]),
        st.sampled_from([[SENTENCEPIECE.token_to_id(w)] for w in ("\u2581\u2581", ".", "<s>")]),
        st.characters(codec="utf-8", exclude_characters=REPLACEMENT).map(
            lambda c: [1 + byte for byte in c.encode()]
        ),
    ),
    max_size=40,
).map(lambda pieces: [token_id for piece in pieces for token_id in piece])


@given(sentencepiece_pieces, sentencepiece_pieces)
def test_sentencepiece_output_continues_its_prompt(prompt: list[int], ids: list[int]) -> None:
    """prompt + output reads as one text: spaces that a decoder strips at a start stay inside."""
    detokenizer = IncrementalDetokenizer(SENTENCEPIECE, prompt, True)
    text = "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()
    context = prompt[-6:]
    whole = SENTENCEPIECE.decode(context + ids)
    if SENTENCEPIECE.decode(context).endswith(REPLACEMENT):
        context, whole = [], SENTENCEPIECE.decode(ids)
    assert SENTENCEPIECE.decode(context) + text == whole


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_on_request(skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], skip)
    ids = [*encode("hi"), SPECIAL, *encode("!")]
    text = "".join(detokenizer.push(token_id) for token_id in ids)
    assert text == ("hi!" if skip else "hi<|end|>!")
