"""Tokenizers: loading, and proving that draft and target read the same token ids.

The hash covers what turns text into ids and ids into text (vocabulary, merges, added tokens,
normalisation), and not the model's logits width, which may be padded differently.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypeAlias

from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from specdec.config import ModelConfig
from specdec.errors import ConfigError
from specdec.model import catalog

# What other packages call a tokenizer, since only this one imports transformers.
Tokenizer: TypeAlias = PreTrainedTokenizerBase

# Parts of a fast tokenizer's serialised form that decide which ids a text becomes. Padding,
# truncation and templates that add special tokens do not change the meaning of an id.
_HASHED_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "model", "decoder")


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer stored with the model. Raises ConfigError where there is none."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            catalog.resolve(config.model),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"cannot load the tokenizer of {config.model!r}: {error}", field="model"
        ) from error
    return tokenizer


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 in hex; equal exactly where two tokenizers give the same ids the same meaning.

    Stable over dictionary order, the file's layout, and padding of the model's vocabulary.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, object] = {"vocabulary": vocabulary(tokenizer)}
    if backend is not None:
        serialised = json.loads(backend.to_str())
        parts |= {name: serialised.get(name) for name in _HASHED_PARTS}
        model = dict(parts["model"] or {})  # type: ignore[call-overload]
        model.pop("vocab", None)  # hashed already, in id order
        parts["model"] = model
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, str]]:
    """(id, token) of every token, added ones included, in the order of ids."""
    return sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """What separates two tokenizers, for an error message; None where they are the same.

    Names the lowest token id whose token differs, or that only one of them has.
    """
    ours, theirs = dict(vocabulary(target)), dict(vocabulary(draft))
    for token_id in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(token_id), theirs.get(token_id)
        if a != b:
            return f"token {token_id} is {_shown(a)} in the target and {_shown(b)} in the draft"
    if tokenizer_hash(target) != tokenizer_hash(draft):
        return "the tokens agree, but not the rules (merges, normalisation) that make them"
    return None


def _shown(token: str | None) -> str:
    return "absent" if token is None else repr(token)


def eos_token_ids(model_folder: str, config: PreTrainedConfig) -> frozenset[int]:
    """The ids that end a text: the generation config's where it exists, else the model's."""
    found = None
    if (Path(model_folder) / "generation_config.json").is_file() or not Path(model_folder).exists():
        try:
            found = GenerationConfig.from_pretrained(model_folder).eos_token_id
        except OSError:
            found = None
    if found is None:
        found = config.get_text_config(decoder=True).eos_token_id
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)


def load_eos_token_ids(config: ModelConfig) -> frozenset[int]:
    """`eos_token_ids` of a model that is named by a ModelConfig."""
    from specdec.model.loader import load_config

    return eos_token_ids(catalog.resolve(config.model), load_config(config))
