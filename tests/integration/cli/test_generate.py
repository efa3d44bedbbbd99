"""`specdec generate` in this process: same tokens whatever the speculation, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "the cat sat on the mat and the cat sat"


@pytest.fixture
def greedy_reference(tiny_llama) -> list[int]:
    """What transformers generates."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    prompt = torch.tensor([tokenizer.encode(PROMPT)])
    output = model.generate(prompt, max_new_tokens=24, do_sample=False)
    return output[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize(
    "speculation",
    [
        ["--speculation", "off"],
        ["--speculation", "auto"],
        ["--speculation", "fixed", "--k", 4, "--drafter", "draft"],
        ["--speculation", "fixed", "--k", 3, "--drafter", "ngram"],
    ],
)
def test_greedy_tokens_are_those_of_transformers(specdec, models, greedy_reference, speculation):
    printed = specdec.json("generate", PROMPT, "--max-tokens", 24, *models, *speculation)
    assert printed["token_ids"] == greedy_reference


def test_seeded_sampling_does_not_depend_on_speculation(specdec, models):
    sampled = ["generate", PROMPT, "--max-tokens", 24, "--temperature", 0.8, "--seed", 7]
    off = specdec.json(*sampled, *models, "--speculation", "off")
    on = specdec.json(*sampled, *models, "--speculation", "fixed", "--k", 4)
    other = specdec.json(*sampled[:-1], 8, *models)
    assert on["token_ids"] == off["token_ids"]
    assert on["text"] == off["text"]
    assert on["speculation"]["num_draft_tokens"] > 0
    assert on["speculation"]["verification"] == "coupled"
    assert off["speculation"]["num_draft_tokens"] == 0
    assert other["token_ids"] != off["token_ids"]


def test_json_agrees_with_itself(specdec, models, tiny_tokenizer):
    printed = specdec.json(
        "generate", PROMPT, "--max-tokens", 20, *models, "--speculation", "fixed", "--k", 4
    )
    stats = printed["speculation"]
    assert printed["num_output_tokens"] == len(printed["token_ids"]) == 20
    assert printed["num_prompt_tokens"] == len(tiny_tokenizer.encode(PROMPT))
    assert printed["finish_reason"] == "length"
    assert printed["text"] == tiny_tokenizer.decode(printed["token_ids"], skip_special_tokens=True)
    assert stats["acceptance_rate"] == stats["num_accepted_tokens"] / stats["num_draft_tokens"]
    assert stats["mean_acceptance_length"] == (
        1 + stats["num_accepted_tokens"] / stats["num_drafts"]
    )
    assert 0 < printed["time_to_first_token_s"] <= printed["total_s"]


def test_clipped_k_is_told(specdec, models):
    printed = specdec.json(
        "generate", PROMPT, "--max-tokens", 8, *models, "--speculation", "fixed", "--k", 9,
        "--max-num-speculative-tokens", 2,
    )  # fmt: skip
    assert printed["speculation"]["clipped_k"] == 2


def test_text_goes_to_stdout_and_the_summary_to_stderr(specdec, models):
    quiet = specdec("generate", PROMPT, "--max-tokens", 12, *models)
    printed = specdec.json("generate", PROMPT, "--max-tokens", 12, *models)
    assert quiet.stdout == printed["text"] + "\n"
    assert "12 tokens, length" in quiet.stderr


def test_prompt_from_file_and_from_standard_input(specdec, models, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    expected = specdec("generate", PROMPT, "--max-tokens", 6, *models).stdout
    assert specdec("generate", "--file", path, "--max-tokens", 6, *models).stdout == expected
    piped = specdec("generate", "--file", "-", "--max-tokens", 6, *models, input=PROMPT)
    assert piped.stdout == expected


def test_chat_goes_through_the_template(specdec, models, tiny_tokenizer):
    message = [{"role": "user", "content": "hi"}]
    text = tiny_tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    chat = specdec.json("generate", "hi", "--chat", "--max-tokens", 6, *models)
    plain = specdec.json("generate", text, "--max-tokens", 6, *models)
    assert chat["token_ids"] == plain["token_ids"]
    assert chat["num_prompt_tokens"] == plain["num_prompt_tokens"]


def test_stop_string_ends_the_text(specdec, models):
    whole = specdec.json("generate", PROMPT, "--max-tokens", 24, *models)["text"]
    stop = whole[3:5]
    cut = specdec.json("generate", PROMPT, "--max-tokens", 24, *models, "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a prompt or --file"),
        (["x", "--file", "y"], "give either a prompt or --file"),
        (["--file", "/no/such/file"], "cannot read"),
        (["x", "--temperature", "-1"], "temperature: must be between 0 and 2"),
        (["x", "--top-p", "nan"], "top_p: must be between 0 and 1"),
        (["x", "--k", "4"], "speculation.k: is only allowed"),
        (["x", "--speculation", "fixed"], "speculation.k: is required"),
        (["x", "--verification", "typical"], "not supported yet"),
        (["x", "--drafter", "medusa"], "not served here"),
        (["", "--max-tokens", "4"], "prompt: must hold at least one token"),
        (["x" * 2000], "must fit the context of 512 tokens"),
    ],
)
def test_bad_input_is_exit_status_2_and_names_the_field(specdec, tiny_llama, arguments, message):
    result = specdec("generate", *arguments, "--target", tiny_llama, code=2)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_unknown_model_is_refused_before_anything_is_loaded(specdec):
    result = specdec("generate", "x", "--target", "/no/such/model", code=2)
    assert "/no/such/model" in result.stderr


def test_draft_drafter_without_a_draft_says_how_to_name_one(specdec, tiny_llama):
    result = specdec("generate", "x", "--target", tiny_llama, "--drafter", "draft", code=2)
    assert "--draft-quantization int8" in result.stderr


def test_help_has_examples(specdec):
    for command in ("generate", "serve", "audit", "doctor"):
        assert f"specdec {command}" in specdec(command, "--help").stdout.split("xamples", 1)[1]
