"""Two tokenizers are the same where their ids mean the same, and the difference has a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from specdec.config import ModelConfig
from specdec.errors import ConfigError
from specdec.model.tokenizer import (
    eos_token_ids,
    first_difference,
    load_tokenizer,
    tokenizer_hash,
)

VOCABULARY = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "ab": 5, "bc": 6}
MERGES = [("a", "b"), ("b", "c")]


def build(
    vocabulary: dict[str, int] | None = None,
    merges: list[tuple[str, str]] | None = None,
    **changes: Any,
) -> PreTrainedTokenizerFast:
    bpe = models.BPE(
        vocab=vocabulary or VOCABULARY, merges=MERGES if merges is None else merges, unk_token="<s>"
    )
    backend = Tokenizer(bpe)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if changes.pop("lowercase", False):
        backend.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", **changes)


def test_equal_tokenizers_have_equal_hashes_however_stored(tmp_path: Path) -> None:
    tokenizer = build()
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7))
    loaded = load_tokenizer(ModelConfig(model=str(tmp_path)))
    assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)
    reordered = dict(reversed(VOCABULARY.items()))
    assert tokenizer_hash(build(reordered)) == tokenizer_hash(tokenizer)
    assert first_difference(tokenizer, loaded) is None


def test_truncation_padding_and_length_do_not_matter() -> None:
    tokenizer = build(model_max_length=7)
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    assert tokenizer_hash(tokenizer) == tokenizer_hash(build())


def test_padded_model_vocabulary_does_not_matter() -> None:
    """The model's logits may be wider than the tokenizer: the hash sees the tokenizer only."""
    config = AutoConfig.for_model("llama", vocab_size=64)
    assert config.vocab_size > len(VOCABULARY)
    assert tokenizer_hash(build()) == tokenizer_hash(build())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({**VOCABULARY, "d": 7}, "token 7 is absent in the target and 'd' in the draft"),
        (
            {**VOCABULARY, "a": 3, "b": 2},
            "token 2 is 'a' in the target and 'b' in the draft",
        ),
    ],
)
def test_any_differing_token_changes_the_hash_and_is_named(
    changed: dict[str, int], message: str
) -> None:
    other = build(changed)
    assert tokenizer_hash(other) != tokenizer_hash(build())
    assert first_difference(build(), other) == message


def test_added_token_changes_the_hash_and_is_named() -> None:
    other = build()
    other.add_tokens(["<tool>"], special_tokens=True)
    assert tokenizer_hash(other) != tokenizer_hash(build())
    assert first_difference(build(), other) == (
        "token 7 is absent in the target and '<tool>' in the draft"
    )


@pytest.mark.parametrize("changes", [{"merges": MERGES[::-1]}, {"lowercase": True}])
def test_rules_count_where_the_tokens_agree(changes: dict[str, Any]) -> None:
    other = build(**changes)
    assert tokenizer_hash(other) != tokenizer_hash(build())
    assert "rules" in str(first_difference(build(), other))


def test_missing_tokenizer_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(ModelConfig(model=str(tmp_path)))
    assert caught.value.field == "model"


def test_eos_token_ids_prefer_the_generation_config(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", eos_token_id=2)
    assert eos_token_ids(str(tmp_path), config) == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert eos_token_ids(str(tmp_path), config) == {5, 6}
    config.eos_token_id = None
    (tmp_path / "generation_config.json").write_text("{}")
    assert eos_token_ids(str(tmp_path), config) == frozenset()
