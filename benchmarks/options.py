"""Command-line options that the benchmarks share, and the prompts and tokenizer they name."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Run
from benchmarks.prompts import (
    DEFAULT_PATH,
    MissingPromptsError,
    Prompt,
    read_prompts,
    sample,
)
from specdec.config import ModelConfig
from specdec.model.catalog import resolve
from specdec.model.tokenizer import Tokenizer, load_tokenizer


@dataclass(slots=True)
class Options:
    """Parsed options. `model` is a local folder."""

    model: str
    prompt_file: Path
    per_category: int
    max_tokens: int
    threads: int
    seed: int
    verbose: bool
    tokenizer: Tokenizer

    def prompts(self, per_category: int | None = None, category: str | None = None) -> list[Prompt]:
        """The seeded sample; ends the program with a message where the file is absent."""
        try:
            prompts = read_prompts(self.prompt_file)
        except MissingPromptsError as error:
            raise SystemExit(f"skipped: {error}") from None
        return sample(prompts, per_category or self.per_category, self.seed, category)

    def progress(self, line: str, runs: dict[str, list[Run]]) -> None:
        """Each side's last speed, while the benchmark runs; on stderr, as it is no result."""
        if self.verbose:
            rates = "  ".join(f"{name} {done[-1].rate:6.1f}" for name, done in runs.items() if done)
            print(f"    {line}  {rates}", file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser, per_category: int) -> None:
    parser.add_argument("--model", default="smollm2", help="a name, folder or hub id")
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PATH, help="Spec-Bench's questions")
    parser.add_argument("--per-category", type=int, default=per_category)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0, help="which prompts are drawn")
    parser.add_argument("--verbose", action="store_true", help="a line for every prompt")


def read(arguments: argparse.Namespace) -> Options:
    model = resolve(arguments.model)
    return Options(
        model=str(model),
        prompt_file=arguments.prompts,
        per_category=arguments.per_category,
        max_tokens=arguments.max_tokens,
        threads=arguments.threads,
        seed=arguments.seed,
        verbose=arguments.verbose,
        tokenizer=load_tokenizer(ModelConfig(model=str(model))),
    )


def parse(description: str | None, per_category: int) -> Options:
    """The options of a benchmark that has none of its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, per_category)
    return read(parser.parse_args())
