"""Bytes, names and places of tokens in log-probabilities, against texts that are known."""

from __future__ import annotations

import pytest

from deployments.grpc_logprobs import PositionMessages
from deployments.openai_logprobs import CompletionLogprobs, Offsets, named, spelt
from specdec.config import ModelConfig
from specdec.engine.request import GenerateRequest
from specdec.model.token_bytes import TokenBytes
from specdec.model.tokenizer import load_tokenizer
from specdec.params import SamplingParams
from specdec.sequence import TokenLogprobs
from tests.scripted_target import ScriptedTarget, answer, events, handlers_of
from tests.tokenizers_of_all_kinds import sentencepiece
from tests.unit.deployments.test_step_tokens import EngineTarget
from tests.unit.engine.engine_harness import make_engine

# Six bytes in two characters, then a word.
COFFEE = "\u2615\ufe0f hi"
TEXTS = {
    "plain": "the cat sat on the mat",
    "latin": "na\u00efve caf\u00e9, d\u00e9j\u00e0 vu",
    "emoji": "\U0001f600\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308!",
    "cjk": "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u4e2d\u6587",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "coffee": COFFEE,
}
EOS = 0
texts = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
MESSAGES = [{"role": "user", "content": "hi"}]


def writing(tokenizer, text, **target):
    """Handlers over a target that writes `text` and ends it."""
    ids = [*tokenizer.encode(text), EOS]
    return handlers_of(tokenizer, ScriptedTarget(tokenizer, ids, **target))


def joined(entries) -> bytes:
    return b"".join(bytes(entry["bytes"]) for entry in entries)


@texts
@pytest.mark.parametrize("n", [1, 2])
async def test_the_bytes_of_a_chats_tokens_are_its_text(tiny_tokenizer, text, n):
    asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "n": n}
    whole = await answer(writing(tiny_tokenizer, text), "chat", **asked)
    stream = await events(writing(tiny_tokenizer, text, per_step=1), "chat", **asked)
    for choice in whole["choices"]:
        content = choice["logprobs"]["content"]
        assert choice["message"]["content"] == text
        assert joined(content) == text.encode()
        assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)
        parts = [c["choices"][0] for c in stream if c["choices"][0]["index"] == choice["index"]]
        told = [part["logprobs"]["content"] for part in parts if part["logprobs"]]
        assert [entry for part in told for entry in part] == content


async def test_a_part_of_a_character_is_written_as_its_bytes(tiny_tokenizer):
    asked = {"messages": MESSAGES, "logprobs": True, "max_tokens": 4}
    whole = await answer(writing(tiny_tokenizer, "\U0001f600"), "chat", **asked)
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [r"\xf0", r"\x9f", r"\x98", r"\x80"]
    assert [entry["bytes"] for entry in content] == [[0xF0], [0x9F], [0x98], [0x80]]


async def test_a_special_token_has_a_name_and_bytes_where_the_text_has_it(tiny_tokenizer):
    ids = [*tiny_tokenizer.encode("a"), EOS]
    for skips, end in ((True, ""), (False, "<|endoftext|>")):
        handlers = handlers_of(tiny_tokenizer, ScriptedTarget(tiny_tokenizer, ids))
        asked = {"logprobs": True, "skip_special_tokens": skips, "stop_token_ids": [EOS]}
        asked |= {"include_stop_str_in_output": True}
        whole = await answer(handlers, "chat", messages=MESSAGES, **asked)
        (choice,) = whole["choices"]
        assert choice["message"]["content"] == "a" + end
        assert joined(choice["logprobs"]["content"]) == ("a" + end).encode()
        assert choice["logprobs"]["content"][-1]["token"] == "<|endoftext|>"


@texts
async def test_a_stop_string_cuts_the_text_and_not_the_tokens(tiny_tokenizer, text):
    stop = text[-2:]
    asked = {"messages": MESSAGES, "logprobs": True, "stop": [stop]}
    whole = await answer(writing(tiny_tokenizer, text), "chat", **asked)
    (choice,) = whole["choices"]
    cut = text[: text.index(stop)]
    assert choice["message"]["content"] == cut
    raw = joined(choice["logprobs"]["content"])
    assert raw.startswith(cut.encode() + stop.encode())
    assert len(choice["logprobs"]["content"]) == whole["usage"]["completion_tokens"]


def check_offsets(text: str, logprobs: dict, vocabulary: TokenBytes, ids: list[int]) -> None:
    """Each token begins in the character that its offset names."""
    place_of_byte = [i for i, character in enumerate(text) for _ in character.encode()]
    position = 0
    for token_id, offset in zip(ids, logprobs["text_offset"], strict=True):
        assert offset == (place_of_byte[position] if position < len(place_of_byte) else len(text))
        position += len(vocabulary.of(token_id, 5))


@texts
@pytest.mark.parametrize("echo", [False, True])
async def test_offsets_count_characters(tiny_tokenizer, text, echo):
    asked = {"prompt": text, "echo": echo, "logprobs": 1, "max_tokens": 500}
    ids = tiny_tokenizer.encode(text)
    whole = await answer(writing(tiny_tokenizer, text, per_step=2), "completions", **asked)
    (choice,) = whole["choices"]
    assert choice["text"] == text * (1 + echo)
    all_ids = ids * (1 + echo)
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(all_ids) + 1, "the end of the text is a token, too"
    shown = {key: values[:-1] for key, values in logprobs.items()}
    check_offsets(choice["text"], shown, TokenBytes(tiny_tokenizer), all_ids)
    assert logprobs["text_offset"][-1] == len(choice["text"])

    stream = await events(writing(tiny_tokenizer, text, per_step=1), "completions", **asked)
    for name, values in logprobs.items():
        parts = [event["choices"][0]["logprobs"] for event in stream]
        assert [value for part in parts if part for value in part[name]] == values


async def test_a_word_behind_a_character_of_six_tokens(tiny_tokenizer):
    handlers = writing(tiny_tokenizer, COFFEE)
    whole = await answer(handlers, "completions", prompt="a", logprobs=0, max_tokens=50)
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["tokens"][:2] == [r"bytes:\xe2", r"bytes:\x98"]
    assert logprobs["text_offset"][:7] == [0, 0, 0, 1, 1, 1, 2]


def test_offsets_of_bytes_that_are_no_text():
    offsets = Offsets()
    raws = [b"\xf0\x9f", b"a", b"\x80", b"\xe2", b"\xe2\x82", b"\xac", b"", b"b"]
    assert [offsets.take(raw) for raw in raws] == [0, 1, 2, 3, 4, 4, 5, 5]
    text = b"".join(raws).decode(errors="replace")
    assert text.index("b") == 5


async def test_the_own_token_is_always_in_the_map(tiny_tokenizer):
    for top_n in (0, 1, 3):
        handlers = writing(tiny_tokenizer, COFFEE)
        whole = await answer(handlers, "completions", prompt="a", logprobs=top_n, max_tokens=50)
        logprobs = whole["choices"][0]["logprobs"]
        for token, value, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert top[token] == value
            assert len(top) == top_n + 1


async def test_tokens_of_the_same_text_do_not_overwrite_each_other():
    tokenizer = sentencepiece()
    full_stop, its_byte = tokenizer.token_to_id("."), 1 + ord(".")

    def told(token_id, top):
        writer = CompletionLogprobs(
            TokenBytes(tokenizer), [5], echo=False, skip_special_tokens=True, as_token_ids=False
        )
        position = TokenLogprobs(token_id, dict(top)[token_id], 1, top)
        return writer.of([position], None)["top_logprobs"][0]

    top = [(full_stop, -0.5), (its_byte, -3.0)]
    assert told(full_stop, top) == {".": -0.5, f"token_id:{its_byte}": -3.0}
    assert told(its_byte, top) == {f"token_id:{full_stop}": -0.5, ".": -3.0}
    assert told(9, [*top, (9, -4.0)])["."] == -0.5


@pytest.mark.parametrize("prompt", ["a", "ab", "abcdefgh"])
async def test_an_echo_has_an_entry_for_every_token(tiny_llama, tiny_tokenizer, prompt):
    handlers = handlers_of(tiny_tokenizer, EngineTarget(make_engine(tiny_llama)))
    asked = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
    whole = await answer(handlers, "completions", **asked, ignore_eos=True, prompt_logprobs=1)
    (choice,) = whole["choices"]
    num_prompt = len(tiny_tokenizer.encode(prompt))
    assert len(choice["logprobs"]["tokens"]) == num_prompt + 3
    assert choice["logprobs"]["token_logprobs"].count(None) == 1
    assert len(choice["prompt_logprobs"]) == num_prompt
    assert choice["prompt_logprobs"][0] is None


def test_how_bytes_are_spelt():
    assert spelt("a\n\u00e9".encode()) == named("a\n\u00e9".encode()) == "a\n\u00e9"
    assert spelt(b" \\\x9f") == r" \x5c\x9f"
    assert named(b"\xf0\x9f") == r"bytes:\xf0\x9f"


@texts
def test_grpc_gives_the_same_bytes(tiny_tokenizer, text):
    ids = [*tiny_tokenizer.encode(text), EOS]
    request = GenerateRequest("r", ids, SamplingParams())
    positions = [TokenLogprobs(i, -1.0, 1, [(i, -1.0)]) for i in ids]
    vocabulary = TokenBytes(tiny_tokenizer)
    messages = PositionMessages(vocabulary, request)
    first = vocabulary.of(ids[0], None)
    for told, lacking in (
        (messages.output(positions), b""),
        (messages.prompt([None, *positions[1:]]), first),
    ):
        known = [message for message in told if message.HasField("token")]
        raw = b"".join(message.token.token_bytes for message in known)
        assert lacking + raw == text.encode()
        assert all(message.top[0] == message.token for message in known)


@pytest.mark.weights
def test_every_token_of_the_demo_is_its_bytes():
    """Joined, the bytes of a token are what the tokenizer decodes wherever that is text."""
    tokenizer = load_tokenizer(ModelConfig(model="smollm2"))
    vocabulary = TokenBytes(tokenizer)
    for token_id in range(len(tokenizer)):
        text = tokenizer.decode([token_id])
        raw = vocabulary.of(token_id, 5)
        assert raw.decode(errors="replace") == text
    assert [vocabulary.of(i, 5) for i in (10813, 242, 218)] == [b"\xf0\x9f", b"\x98", b"\x80"]


@pytest.mark.weights
async def test_real_prompts_come_back_from_their_tokens(spec_bench):
    tokenizer = load_tokenizer(ModelConfig(model="smollm2"))
    texts = [prompt.turns[0][:1500] for prompt in spec_bench[::12]] + list(TEXTS.values())
    for text in texts:
        handlers = writing(tokenizer, text)
        asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "max_tokens": 2000}
        (choice,) = (await answer(handlers, "chat", **asked))["choices"]
        assert choice["message"]["content"] == text
        assert joined(choice["logprobs"]["content"]) == text.encode()
