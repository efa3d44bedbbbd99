"""Stops inside an accepted block: ids, text, counts and reasons agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specdec.engine.output import Emitted, OutputState, StopStrings
from specdec.errors import InvalidRequestError
from specdec.model.token_bytes import TokenBytes
from specdec.params import SamplingParams
from specdec.sequence import Sequence, Verification

EOS = 300
STOP = 12


def byte_level_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_level_tokenizer()
VOCABULARY = TokenBytes(TOKENIZER)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def sequence(max_model_len: int = 1000, num_prompt_tokens: int = 3, **params: Any) -> Sequence:
    params.setdefault("max_tokens", 500)
    return Sequence(
        seq_id=1,
        request_id="r",
        token_ids=encode("p" * num_prompt_tokens),
        num_prompt_tokens=num_prompt_tokens,
        params=SamplingParams(**params),
        seed=0,
        verification=Verification.GREEDY,
        eos_token_ids=frozenset({EOS}),
        max_model_len=max_model_len,
    )


def run(state: OutputState, blocks: list[list[int]]) -> Emitted:
    """Feed blocks until the output ends; everything emitted, joined."""
    total = Emitted()
    for block in blocks:
        emitted = state.append(block)
        total.token_ids += emitted.token_ids
        total.text += emitted.text
        total.finish_reason, total.stop_reason = emitted.finish_reason, emitted.stop_reason
        if state.finished:
            break
    return total


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[low:high] for low, high in pairwise(bounds)]


@pytest.mark.parametrize(
    ("max_tokens", "kept", "reason"),
    [(5, [10, 11, STOP], "stop"), (3, [10, 11, STOP], "stop"), (2, [10, 11], "length")],
)
def test_stop_token_inside_at_and_beyond_the_budget(
    max_tokens: int, kept: list[int], reason: str
) -> None:
    state = OutputState(sequence(max_tokens=max_tokens, stop_token_ids=(STOP,)), None)
    emitted = state.append([10, 11, STOP, 20, 21, 22])
    assert emitted.token_ids == kept
    assert emitted.finish_reason == reason
    assert emitted.stop_reason == (STOP if reason == "stop" else None)
    assert state.finished
    assert state.num_tokens == len(kept)


def test_max_tokens_cuts_a_block() -> None:
    state = OutputState(sequence(max_tokens=5), None)
    assert state.append([10, 11]).finish_reason is None
    emitted = state.append([12, 20, 21, 22])
    assert (emitted.token_ids, emitted.finish_reason) == ([12, 20, 21], "length")


def test_full_context_cuts_a_block() -> None:
    state = OutputState(sequence(max_model_len=7, num_prompt_tokens=3), VOCABULARY)
    emitted = state.append(encode("abcdef"))
    assert (emitted.token_ids, emitted.text) == (encode("abcd"), "abcd")
    assert emitted.finish_reason == "length"


def test_eos_in_the_middle_of_a_block() -> None:
    state = OutputState(sequence(), VOCABULARY)
    emitted = state.append([*encode("ab"), EOS, *encode("cd")])
    assert emitted == Emitted([*encode("ab"), EOS], "ab", "stop", None)


def test_ignored_eos_still_stops_as_a_stop_token() -> None:
    assert OutputState(sequence(ignore_eos=True), None).append([EOS, 1]).finish_reason is None
    stop = OutputState(sequence(ignore_eos=True, stop_token_ids=(EOS,)), None).append([EOS, 1])
    assert (stop.token_ids, stop.stop_reason) == ([EOS], EOS)


def test_stop_token_text_only_when_asked_for() -> None:
    x, y = encode("xy")
    for include, text in ((False, "x"), (True, "xy")):
        params = {"stop_token_ids": (y,), "include_stop_str_in_output": include}
        emitted = OutputState(sequence(**params), VOCABULARY).append([x, y, x])
        assert (emitted.text, emitted.stop_reason) == (text, y)


def test_stop_string_cuts_ids_at_the_token_that_completes_it() -> None:
    state = OutputState(sequence(stop=("lo w",)), VOCABULARY)
    emitted = state.append(encode("hello world"))
    assert emitted == Emitted(encode("hello w"), "hel", "stop", "lo w")


def test_stop_string_across_blocks_is_held_back_and_released() -> None:
    state = OutputState(sequence(stop=("END",)), VOCABULARY)
    assert [state.append(encode(t)).text for t in ("aE", "N", "x")] == ["a", "", "ENx"]
    assert [state.append(encode(t)).text for t in ("EN", "D")] == ["", ""]
    assert state.finished


def test_held_text_is_released_at_length_and_on_abort() -> None:
    params = {"stop": ("END",), "max_tokens": 3}
    emitted = OutputState(sequence(**params), VOCABULARY).append(encode("aEN"))
    assert (emitted.text, emitted.finish_reason) == ("aEN", "length")
    state = OutputState(sequence(**params), VOCABULARY)
    state.append(encode("aE"))
    assert state.flush() == "E"


def test_the_stop_string_that_is_complete_first_wins() -> None:
    state = OutputState(sequence(stop=("abcd", "bc")), VOCABULARY)
    assert state.append(encode("abcd")) == Emitted(encode("abc"), "a", "stop", "bc")


def test_stop_string_at_the_last_token_is_a_stop() -> None:
    state = OutputState(sequence(stop=("b",), max_tokens=2), VOCABULARY)
    assert state.append(encode("ab")).finish_reason == "stop"


def test_no_stop_is_honoured_within_min_tokens() -> None:
    y = encode("y")[0]
    params = {"min_tokens": 3, "stop": ("xy",), "stop_token_ids": (y,)}
    state = OutputState(sequence(**params), VOCABULARY)
    assert state.append(encode("xyx")) == Emitted(encode("xyx"), "xy")
    assert state.append([y, y]) == Emitted([y], "x", "stop", y)
    strings = OutputState(sequence(min_tokens=2, stop=("xy", "xyz")), VOCABULARY)
    assert strings.append(encode("xyz")) == Emitted(encode("xyz"), "", "stop", "xyz")


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        OutputState(sequence(stop=("a",)), None)
    assert raised.value.field == "stop"


texts = st.text(alphabet="ab\u20ac\U0001f600", max_size=30)
stops = st.lists(st.text(alphabet="ab\u20ac", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str], after: int) -> tuple[int, int] | None:
    """(start, end) of the stop string that ends first beyond text[:after], character by
    character; of two that end together, the longer."""
    for end in range(after + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end - len(max(ending, key=len)), end
    return None


@given(texts, stops, st.lists(st.integers(0, 200), max_size=12), st.integers(0, 10), st.booleans())
def test_any_split_into_blocks_gives_the_text_of_the_kept_ids(
    text: str, stops: list[str], cuts: list[int], min_tokens: int, include: bool
) -> None:
    ids = encode(text)
    params = {"stop": tuple(stops), "min_tokens": min_tokens, "max_tokens": 1000}
    state = OutputState(sequence(include_stop_str_in_output=include, **params), VOCABULARY)
    total = run(state, split(ids, cuts))
    total.text += "" if state.finished else state.flush()

    ordinary = text.encode()[:min_tokens].decode(errors="ignore")
    match = first_stop(text, stops, len(ordinary))
    if match is None:
        assert total == Emitted(ids, text, None, None)
        assert total.text == TOKENIZER.decode(total.token_ids)
        return
    start, end = match
    assert total.text == text[: end if include else start]
    assert total.stop_reason == text[start:end]
    assert TOKENIZER.decode(total.token_ids) == text[:end]


@given(st.lists(st.integers(0, 255), max_size=60), st.lists(st.integers(0, 200), max_size=12))
def test_any_bytes_in_any_blocks_decode_whole(ids: list[int], cuts: list[int]) -> None:
    state = OutputState(sequence(stop=("\x00never\x00",)), VOCABULARY)
    total = run(state, split(ids, cuts))
    assert total.text + state.flush() == TOKENIZER.decode(ids)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=30), st.integers(1, 30))
def test_text_of_a_length_finish_is_that_of_the_kept_ids(ids: list[int], budget: int) -> None:
    state = OutputState(sequence(max_tokens=budget, stop=("\x00never\x00",)), VOCABULARY)
    total = run(state, [ids])
    assert total.token_ids == ids[:budget]
    assert total.finish_reason == ("length" if budget <= len(ids) else None)
    if state.finished:
        assert total.text == TOKENIZER.decode(ids[:budget])


class _Counted(str):
    """A stop string that counts how often one of its characters is looked at."""

    num_read = 0

    def __getitem__(self, key):
        type(self).num_read += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("text", ["a" * 4000, ("a" * 1023 + "c") * 4, "ab" * 2000])
def test_a_long_stop_string_is_searched_in_linear_time(text: str) -> None:
    """A text that matches nearly all of it, again and again, one character at a time."""
    _Counted.num_read = 0
    stops = StopStrings([_Counted("a" * 1023 + "b")])
    free = "".join(stops.push(character, True)[0] for character in text)
    assert free + stops.flush() == text
    assert _Counted.num_read < 4 * len(text) + 4 * 1024


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.tuples(st.text("abc", max_size=6), st.booleans()), max_size=12),
)
def test_stop_strings_are_found_as_a_plain_search_finds_them(
    stops: list[str], pieces: list[tuple[str, bool]]
) -> None:
    found = StopStrings(stops)
    text = free = ""
    for piece, honoured in pieces:
        old, text = len(text), text + piece
        given_free, match = found.push(piece, honoured)
        ends = [
            (end, end - len(stop), stop)
            for stop in stops
            for end in range(old + 1, len(text) + 1)
            if honoured and text[:end].endswith(stop)
        ]
        if not ends:
            assert match is None
            free += given_free
            held = text[len(free) :]
            beginnings = {stop[:n] for stop in stops for n in range(len(stop))}
            longest = max(n for n in range(len(text) + 1) if text[len(text) - n :] in beginnings)
            assert free + held == text
            assert len(held) == longest
            continue
        end, start, _ = min(ends, key=lambda each: each[:2])
        assert match is not None
        assert (len(free) + match.end, len(free) + match.start) == (end, start)
        assert free + given_free == text
        break
