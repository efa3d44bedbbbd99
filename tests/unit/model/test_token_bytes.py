"""Bytes of tokens: joined they are the tokenizer's own `decode`, for every kind of decoder."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specdec.model.token_bytes import TokenBytes, TokenWalk, text_of
from tests.tokenizers_of_all_kinds import KINDS, byte_level, sentencepiece, unknown_rules

kinds = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
# Also ids that no vocabulary has.
any_ids = st.lists(st.integers(0, 300), max_size=30)


def runs_of_bytes_are_text(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether a SentencePiece decoder would keep every run of byte tokens."""
    pieces = [tokenizer.id_to_token(i) for i in ids]
    run = b""
    for piece in [*pieces, "end"]:
        if piece and piece.startswith("<0x"):
            run += bytes([int(piece[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


@kinds
@settings(max_examples=40)
@given(ids=any_ids, skip=st.booleans())
def test_all_bytes_together_are_the_decoded_text(tokenizer, ids, skip):
    written = [i for i in ids if TokenBytes(tokenizer).is_written(i, skip)]
    text = text_of(TokenBytes(tokenizer), ids, skip)
    if runs_of_bytes_are_text(tokenizer, written):
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
    else:
        assert "\ufffd" in text


@kinds
@settings(max_examples=40)
@given(prompt=any_ids, ids=any_ids, skip=st.booleans())
def test_a_text_that_continues_another_keeps_its_first_space(tokenizer, prompt, ids, skip):
    vocabulary = TokenBytes(tokenizer)
    walk = TokenWalk(vocabulary, prompt, skip)
    whole = TokenWalk(vocabulary, (), skip)
    before = b"".join(map(whole.step, prompt))
    assert before + b"".join(map(walk.step, ids)) == before + b"".join(map(whole.step, ids))


def test_a_decoder_without_known_rules_is_asked_in_context():
    tokenizer = unknown_rules()
    ids = [tokenizer.token_to_id(piece) for piece in ("a", "|", "b", "\u732b")]
    assert text_of(TokenBytes(tokenizer), ids, False) == tokenizer.decode(ids) == "a b\u732b"


def test_parts_of_a_character_keep_their_own_bytes():
    emoji = "\U0001f600".encode()
    for tokenizer, ids in (
        (byte_level(), byte_level().encode("\U0001f600").ids),
        (sentencepiece(), [1 + byte for byte in emoji]),
    ):
        vocabulary = TokenBytes(tokenizer)
        assert [vocabulary.of(i, ids[0]) for i in ids] == [bytes([byte]) for byte in emoji]


def test_a_skipped_token_adds_nothing_and_has_a_name():
    tokenizer = byte_level()
    walk = TokenWalk(TokenBytes(tokenizer), (), skip_special_tokens=True)
    assert walk.written_here(256) == b"<|end|>"
    assert walk.added_here(256) == walk.step(256) == b""


def test_ids_beyond_the_vocabulary_add_nothing():
    vocabulary = TokenBytes(byte_level())
    assert vocabulary.of(5000, None) == vocabulary.of(5000, 1) == b""


class Slow:
    """A tokenizer that can only decode, as those written in Python: no rules are known of it."""

    all_special_ids = (0,)
    pieces = ("<s>", "the", "cat", "<0xF0>")

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        return self.pieces[token_id] if token_id < len(self.pieces) else None

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(self.pieces[i] for i in ids if i < 3)


def test_a_tokenizer_in_python_is_asked_in_context():
    vocabulary = TokenBytes(Slow())
    assert text_of(vocabulary, [0, 1, 2], skip_special_tokens=True) == "the cat"
    assert vocabulary.of(3, 1) == b"\xf0"


def test_a_token_is_worked_out_once():
    asked = []

    class Counted(TokenBytes):
        def __init__(self) -> None:
            super().__init__(byte_level())
            piece = self._piece
            self._piece = lambda token_id: asked.append(token_id) or piece(token_id)

    vocabulary = Counted()
    for _ in range(5):
        vocabulary.of(65, 66)
    assert asked == [65]


@pytest.mark.parametrize(
    "text", ["naïve café", "日本語のテキスト", "مرحبا بالعالم", "👩‍👩‍👧‍👦🏳️‍🌈", "a\x00b"]
)
def test_the_tiny_tokenizer_gives_back_what_it_took(tiny_tokenizer, text):
    vocabulary = TokenBytes(tiny_tokenizer)
    ids = tiny_tokenizer.encode(text)
    assert [vocabulary.of(i, None) for i in ids] == [vocabulary.of(i, 5) for i in ids]
    assert b"".join(vocabulary.of(i, 5) for i in ids) == text.encode()
