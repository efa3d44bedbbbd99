"""The HTTP interface as the real `openai` client sees it."""

from __future__ import annotations

import pytest

from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams

PROMPT = "once upon a time the cat"
MODES = ({"mode": "off"}, {"mode": "fixed", "k": 4}, {"mode": "auto"})


def reference(engine, prompt_token_ids, **params):
    """Token ids and text of the in-process engine."""
    request = GenerateRequest("reference", list(prompt_token_ids), SamplingParams(**params))
    outputs = list(engine.generate([request]))
    token_ids = [token_id for output in outputs for token_id in output.token_ids]
    return token_ids, "".join(output.text for output in outputs)


@pytest.mark.parametrize("speculation", MODES, ids=lambda m: m["mode"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_text_is_the_engines_own(openai, engine, tiny_tokenizer, speculation, temperature):
    answer = openai.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=40,
        seed=7,
        temperature=temperature,
        extra_body={"speculation": speculation, "return_token_ids": True},
    )
    expected_ids, expected_text = reference(
        engine,
        tiny_tokenizer.encode(PROMPT),
        max_tokens=40,
        seed=7,
        temperature=temperature,
    )
    choice = answer.choices[0]
    assert choice.token_ids == expected_ids
    assert choice.text == expected_text
    assert answer.usage.completion_tokens == len(expected_ids)
