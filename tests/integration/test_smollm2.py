"""The demo model as the catalog leaves it: tokenizer, limits, and that it still speaks English."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec.errors import ConfigError
from specdec.model import catalog

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def folder() -> str:
    try:
        return catalog.resolve("smollm2")
    except ConfigError as absent:
        pytest.skip(absent.message)


def test_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("Once upon a time") == [6403, 1980, 253, 655]
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x:\n\n10  2")) == [
        *("x", ":", "ĊĊ", "1", "0", "ĠĠ", "2")
    ]
    assert (len(tokenizer), tokenizer.model_max_length, tokenizer.eos_token_id) == (49152, 8192, 2)


def test_model_answers(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.max_position_embeddings == 8192
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = output[0, inputs["input_ids"].shape[1] :].tolist()
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
