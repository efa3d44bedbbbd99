"""Fixtures shared by all tests: tiny random models in float64, a tiny tokenizer, real prompts.

The models are random but not degenerate: a wide initialisation keeps greedy text from settling on
one token, and the draft is the target with noise, so that some of its proposals are accepted and
some are not.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "token")
if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REPOSITORY = Path(__file__).resolve().parents[1]
SPEC_BENCH = REPOSITORY.parent / "shared" / "data" / "spec_bench.jsonl.gz"

EOS_TOKEN = "<|endoftext|>"
SPECIAL_TOKENS = (EOS_TOKEN, "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "the cat sat on the mat and the dog ran after the cat",
    "once upon a time there was a small model that wrote the same words again and again",
    "tokens are proposed by the draft and verified by the target",
)


@dataclass(frozen=True)
class SpecBenchPrompt:
    """One Spec-Bench question: its category and its turns."""

    question_id: int
    category: str
    turns: tuple[str, ...]


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    """Two cores are shared by everything that the tests start."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spec_bench() -> list[SpecBenchPrompt]:
    """All 240 Spec-Bench prompts, or a skip where the file is not beside the checkout."""
    if not SPEC_BENCH.exists():
        pytest.skip("Spec-Bench prompts are not on this machine")
    with gzip.open(SPEC_BENCH, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        SpecBenchPrompt(row["question_id"], row["category"], tuple(row["turns"])) for row in rows
    ]


def build_tokenizer():
    """A byte-level BPE tokenizer: 256 bytes, a few merges, three special tokens, chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=288,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS_TOKEN)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_llama(vocab_size: int, seed: int):
    """A random two-layer Llama in float64 with grouped-query attention (4 heads, 2 KV heads)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(torch.float64).eval()


def _perturbed(model, relative_noise: float, seed: int):
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise * parameter.std(correction=0) * relative_noise)
    return model


def _save(model, tokenizer, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """The tokenizer of the tiny models (a transformers fast tokenizer)."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory, tiny_tokenizer) -> Path:
    """Folder of a tiny random target: float64, 288 tokens, EOS 0, context 512, tokenizer."""
    model = build_llama(len(tiny_tokenizer), seed=0)
    return _save(model, tiny_tokenizer, tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory, tiny_tokenizer) -> Path:
    """Folder of a draft for `tiny_llama`: its weights with noise, so it is right now and then."""
    model = _perturbed(build_llama(len(tiny_tokenizer), seed=0), relative_noise=0.06, seed=1)
    return _save(model, tiny_tokenizer, tmp_path_factory.mktemp("tiny_draft"))
