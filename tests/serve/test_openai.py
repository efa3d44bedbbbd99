"""The HTTP interface as the real `openai` client sees it, against the same engine in process."""

from __future__ import annotations

import pytest

from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams
from tests.conftest import CHAT_TEMPLATE
from tests.serve.harness import MAX_K

PROMPT = "once upon a time the cat"
# Prose that repeats itself, so that n-grams are found as well.
REPEATING = "the cat sat on the mat and the dog ran after the cat and the cat sat on the mat"
MODES = ({"mode": "off"}, {"mode": "fixed", "k": 4}, {"mode": "auto"})
CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "tell of the cat"},
]


def reference(engine, prompt_token_ids, **params):
    """Token ids, text and log-probabilities of the in-process engine without speculation."""
    request = GenerateRequest("reference", list(prompt_token_ids), SamplingParams(**params))
    outputs = list(engine.generate([request]))
    token_ids = [token_id for output in outputs for token_id in output.token_ids]
    logprobs = [entry for output in outputs for entry in output.logprobs or []]
    return token_ids, "".join(output.text for output in outputs), logprobs


def chat_ids(tokenizer, messages):
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, chat_template=CHAT_TEMPLATE
    )
    return tokenizer.encode(text, add_special_tokens=False)


class TestCompletions:
    @pytest.mark.parametrize("speculation", MODES, ids=lambda m: m["mode"])
    @pytest.mark.parametrize("temperature", [0, 0.8])
    def test_text_is_the_engines_own(
        self, openai, engine, tiny_tokenizer, speculation, temperature
    ):
        answer = openai.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=40,
            seed=7,
            temperature=temperature,
            extra_body={"speculation": speculation, "return_token_ids": True},
        )
        token_ids, text, _ = reference(
            engine, tiny_tokenizer.encode(PROMPT), max_tokens=40, seed=7, temperature=temperature
        )
        choice = answer.choices[0]
        assert choice.token_ids == token_ids
        assert choice.prompt_token_ids == tiny_tokenizer.encode(PROMPT)
        assert choice.text == text
        assert answer.usage.completion_tokens == len(token_ids)

    def test_shape(self, openai, tiny_tokenizer):
        answer = openai.completions.create(model="tiny", prompt=PROMPT, temperature=0)
        assert answer.id.startswith("cmpl-")
        assert answer.object == "text_completion"
        assert answer.model == "tiny"
        assert answer.choices[0].finish_reason == "length"
        usage = answer.usage
        assert usage.prompt_tokens == len(tiny_tokenizer.encode(PROMPT))
        assert usage.completion_tokens == 16, "OpenAI's default of max_tokens"
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    def test_streamed_text_and_usage_are_those_of_the_whole(self, openai):
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 30, "seed": 3}
        whole = openai.completions.create(**asked)
        chunks = list(
            openai.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        )
        *content, last = chunks
        assert "".join(chunk.choices[0].text for chunk in content) == whole.choices[0].text
        assert [c.choices[0].finish_reason for c in content[:-1]] == [None] * (len(content) - 1)
        assert content[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert content[-1].choices[0].text == "", "the reason to end comes alone"
        assert last.choices == []
        assert last.usage.completion_tokens == whole.usage.completion_tokens
        assert last.usage.prompt_tokens == whole.usage.prompt_tokens
        assert last.model_extra["metrics"]["speculative_decoding"]["mode"] == "auto"
        assert len({chunk.id for chunk in chunks}) == 1

    def test_no_usage_chunk_unless_asked_for(self, openai):
        chunks = list(
            openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=3, stream=True)
        )
        assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)

    def test_several_prompts_as_texts_and_as_token_ids(self, openai, tiny_tokenizer):
        texts = ["the cat", "a small model", "tokens are"]
        asked = {"model": "tiny", "max_tokens": 8, "temperature": 0}
        together = openai.completions.create(prompt=texts, **asked)
        apart = [openai.completions.create(prompt=text, **asked) for text in texts]
        by_ids = openai.completions.create(
            prompt=[tiny_tokenizer.encode(text) for text in texts], **asked
        )
        expected = [answer.choices[0].text for answer in apart]
        for answer in (together, by_ids):
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
            assert [choice.text for choice in answer.choices] == expected
            assert answer.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in apart)
            assert answer.usage.completion_tokens == 24
        one = openai.completions.create(prompt=tiny_tokenizer.encode(texts[0]), **asked)
        assert one.choices[0].text == expected[0]

    def test_n_choices_follow_their_seeds(self, openai):
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 1.0}
        answer = openai.completions.create(n=3, seed=11, **asked)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        for index, choice in enumerate(answer.choices):
            alone = openai.completions.create(seed=11 + index, **asked)
            assert choice.text == alone.choices[0].text
        assert len({choice.text for choice in answer.choices}) == 3
        assert answer.usage.completion_tokens == 36

    def test_streamed_choices_carry_their_index(self, openai):
        asked = {"model": "tiny", "prompt": ["the cat", "the dog"], "max_tokens": 10, "seed": 4}
        whole = openai.completions.create(n=2, **asked)
        texts = [""] * 4
        finished = set()
        for chunk in openai.completions.create(n=2, stream=True, **asked):
            choice = chunk.choices[0]
            assert choice.index not in finished
            texts[choice.index] += choice.text
            if choice.finish_reason:
                finished.add(choice.index)
        assert texts == [choice.text for choice in whole.choices]
        assert finished == {0, 1, 2, 3}

    def test_seeds(self, openai):
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 1.0}
        texts = [openai.completions.create(seed=s, **asked).choices[0].text for s in (5, 5, 6)]
        assert texts[0] == texts[1] != texts[2]
        free = {openai.completions.create(**asked).choices[0].text for _ in range(3)}
        assert len(free) == 3, "without a seed each request draws its own"

    def test_stop_string_ends_the_text_before_it(self, openai):
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        text = openai.completions.create(**asked).choices[0].text
        stop = text[10:13]
        for stream in (False, True):
            answer = openai.completions.create(**asked, stop=[stop, "never"], stream=stream)
            chunks = list(answer) if stream else [answer]
            assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
            assert chunks[-1].choices[0].finish_reason == "stop"
            assert chunks[-1].choices[0].stop_reason == stop

    def test_logprobs_are_the_engines(self, openai, engine, tiny_tokenizer):
        answer = openai.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=12,
            temperature=0,
            logprobs=3,
            extra_body={"return_tokens_as_token_ids": True, "speculation": MODES[1]},
        )
        ids, _, expected = reference(
            engine, tiny_tokenizer.encode(PROMPT), max_tokens=12, temperature=0, logprobs=3
        )
        got = answer.choices[0].logprobs
        assert got.tokens == [f"token_id:{token_id}" for token_id in ids]
        assert got.token_logprobs == pytest.approx([e.logprob for e in expected], abs=1e-9)
        assert [list(top) for top in got.top_logprobs] == [
            [f"token_id:{token_id}" for token_id, _ in e.top] for e in expected
        ]

    def test_echo_gives_the_prompt_with_its_logprobs(self, openai, tiny_tokenizer):
        prompt_ids = tiny_tokenizer.encode(PROMPT)
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
        plain = openai.completions.create(**asked, logprobs=2)
        echoed = openai.completions.create(**asked, logprobs=2, echo=True)
        choice = echoed.choices[0]
        assert choice.text == PROMPT + plain.choices[0].text
        assert echoed.usage.total_tokens == plain.usage.total_tokens
        logprobs = choice.logprobs
        assert len(logprobs.tokens) == len(prompt_ids) + 6
        assert logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in logprobs.token_logprobs[1:])
        tail = plain.choices[0].logprobs.token_logprobs
        assert logprobs.token_logprobs[len(prompt_ids) :] == pytest.approx(tail, abs=1e-9)
        echoed_part = list(zip(logprobs.tokens, logprobs.text_offset, strict=True))
        for token, offset in echoed_part[: len(prompt_ids)]:
            assert PROMPT[offset : offset + len(token)] == token

    def test_streamed_echo_and_offsets(self, openai):
        asked = {
            "model": "tiny",
            "prompt": PROMPT,
            "max_tokens": 6,
            "temperature": 0,
            "logprobs": 0,
            "echo": True,
        }
        whole = openai.completions.create(**asked).choices[0]
        chunks = [c.choices[0] for c in openai.completions.create(**asked, stream=True)]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        for name in ("tokens", "token_logprobs", "text_offset"):
            told = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
            joined = [value for part in told for value in getattr(part, name)]
            assert joined == getattr(whole.logprobs, name)


class TestChat:
    def test_answer_is_the_engines_own(self, openai, engine, tiny_tokenizer):
        answer = openai.chat.completions.create(
            model="tiny", messages=CONVERSATION, max_completion_tokens=24, seed=2
        )
        ids, text, _ = reference(
            engine, chat_ids(tiny_tokenizer, CONVERSATION), max_tokens=24, seed=2
        )
        assert answer.id.startswith("chatcmpl-")
        assert answer.object == "chat.completion"
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content == text
        assert answer.usage.completion_tokens == len(ids)

    def test_content_parts_are_joined(self, openai):
        parts = [{"type": "text", "text": "tell of "}, {"type": "text", "text": "the cat"}]
        answers = [
            openai.chat.completions.create(
                model="tiny",
                messages=[CONVERSATION[0], {"role": "user", "content": content}],
                max_tokens=8,
                temperature=0,
            )
            for content in ("tell of the cat", parts)
        ]
        assert answers[0].choices[0].message.content == answers[1].choices[0].message.content

    def test_stream(self, openai):
        asked = {"model": "tiny", "messages": CONVERSATION, "max_completion_tokens": 24, "seed": 2}
        whole = openai.chat.completions.create(**asked)
        chunks = list(
            openai.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
        *content, last = chunks
        assert content[0].choices[0].delta.role == "assistant"
        assert all(chunk.choices[0].delta.role is None for chunk in content[1:])
        text = "".join(chunk.choices[0].delta.content or "" for chunk in content)
        assert text == whole.choices[0].message.content
        assert content[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert content[-1].choices[0].delta.content is None, "the reason to end comes alone"
        assert last.choices == []
        assert last.usage.total_tokens == whole.usage.total_tokens
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}

    def test_logprobs(self, openai, engine, tiny_tokenizer):
        answer = openai.chat.completions.create(
            model="tiny",
            messages=CONVERSATION,
            max_tokens=8,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
        )
        ids, _, expected = reference(
            engine,
            chat_ids(tiny_tokenizer, CONVERSATION),
            max_tokens=8,
            temperature=0,
            logprobs=2,
        )
        got = answer.choices[0].logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in got).decode(errors="replace") == (
            answer.choices[0].message.content
        )
        assert len(got) == len(ids)
        assert [e.logprob for e in got] == pytest.approx([e.logprob for e in expected], abs=1e-9)
        for entry, wanted in zip(got, expected, strict=True):
            assert [t.logprob for t in entry.top_logprobs] == pytest.approx(
                [value for _, value in wanted.top], abs=1e-9
            )

    def test_without_a_limit_it_fills_the_context_or_stops(self, openai):
        answer = openai.chat.completions.create(model="tiny", messages=CONVERSATION, seed=1)
        choice, usage = answer.choices[0], answer.usage
        assert choice.finish_reason == "stop" or usage.total_tokens == 256


class TestSpeculationReport:
    def ask(self, openai, speculation, **given):
        asked = {"model": "tiny", "prompt": REPEATING, "max_tokens": 48, "temperature": 0, **given}
        extra = {"speculation": speculation, "ignore_eos": True}
        answer = openai.completions.create(**asked, extra_body=extra)
        return answer, answer.metrics["speculative_decoding"]

    @pytest.mark.parametrize("verification", ["auto", "coupled", "rejection", "block"])
    def test_counts_agree_with_each_other(self, openai, verification):
        wish = {"mode": "fixed", "k": 3, "verification": verification}
        answer, report = self.ask(openai, wish, temperature=0.7)
        histogram = report["acceptance_histogram"]
        assert report["num_draft_tokens"] > 0
        assert sum(histogram) == report["num_spec_steps"]
        assert sum(j * n for j, n in enumerate(histogram)) == report["num_accepted_draft_tokens"]
        assert sum(report["per_step_accepted"]) == report["num_accepted_draft_tokens"]
        assert sum(report["per_step_drafted"]) == report["num_draft_tokens"]
        assert answer.usage.completion_tokens == (
            1 + report["num_decode_steps"] + report["num_emitted_accepted_draft_tokens"]
        )
        assert report["verification"] == ("block" if verification == "auto" else verification)
        assert report["mode"] == "fixed"
        assert report["num_spec_tokens"] == 3

    def test_off(self, openai):
        _, report = self.ask(openai, {"mode": "off"})
        assert report["num_draft_tokens"] == 0
        assert report["drafter"] is None
        assert report["disabled_reason"] == "off_by_request"

    def test_a_k_above_the_operators_limit_is_clipped_and_says_so(self, openai):
        _, report = self.ask(openai, {"mode": "fixed", "k": 50})
        assert report["clipped_k"] == MAX_K
        assert max(report["per_step_drafted"]) <= MAX_K
        _, report = self.ask(openai, {"mode": "fixed", "k": 2})
        assert report["clipped_k"] is None

    @pytest.mark.parametrize("drafter", ["draft", "ngram"])
    def test_a_drafter_can_be_named(self, openai, drafter):
        _, report = self.ask(openai, {"mode": "fixed", "k": 3, "drafter": drafter})
        assert report["drafter"] == drafter
        assert report["num_draft_tokens"] > 0

    def test_flat_aliases_of_benchmark_clients(self, openai):
        answer = openai.completions.create(
            model="tiny",
            prompt=REPEATING,
            max_tokens=12,
            temperature=0,
            extra_body={"speculation_k": 2},
        )
        report = answer.metrics["speculative_decoding"]
        assert report["mode"] == "fixed"
        assert report["num_spec_tokens"] == 2
