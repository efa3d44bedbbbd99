"""Spec-Bench prompts for the benchmarks: read, sampled with a seed, written as chat messages.

The file (240 prompts, 13 categories, Apache-2.0) is no part of the package; without it a benchmark
says so and stops.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from specdec.model.tokenizer import Tokenizer

DEFAULT_PATH = Path(__file__).resolve().parents[2] / "shared/data/spec_bench.jsonl.gz"
# MT-Bench's eight categories hold five prompts each and are reported as one, as Spec-Bench does.
OWN_CATEGORIES = ("translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = "mt_bench"


class MissingPromptsError(Exception):
    """The prompt file is not here."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The first turn of a Spec-Bench question."""

    category: str
    text: str

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """As the user's message of a chat."""
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": self.text}], tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids


def read_prompts(path: Path = DEFAULT_PATH) -> dict[str, list[Prompt]]:
    """Prompts by category, in the file's order. Raises MissingPromptsError."""
    if not path.exists():
        raise MissingPromptsError(f"{path} is absent: give Spec-Bench's questions with --prompts")
    found: dict[str, list[Prompt]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            question = json.loads(line)
            category = question["category"]
            category = category if category in OWN_CATEGORIES else MT_BENCH
            found[category].append(Prompt(category, question["turns"][0]))
    return dict(found)


def sample(
    prompts: dict[str, list[Prompt]], per_category: int, seed: int, category: str | None = None
) -> list[Prompt]:
    """`per_category` different prompts of every category (or of one), categories in turn, so that
    a machine that changes its speed meets all alike."""
    draws = random.Random(seed)
    chosen = {
        name: draws.sample(items, min(per_category, len(items)))
        for name, items in sorted(prompts.items())
    }
    columns = [items for name, items in chosen.items() if category in (None, name)]
    return [
        items[index] for index in range(per_category) for items in columns if index < len(items)
    ]
