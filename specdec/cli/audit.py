"""`specdec audit`: does speculation leave the text of your prompts as it is, on your model?"""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specdec.cli.comparison import TIE_GAP, Comparison, compare
from specdec.cli.console import ExitCode, messages, output, print_json, progress_bar
from specdec.cli.generation import Decode
from specdec.cli.local_engine import decoder, encode, open_engine
from specdec.cli.options import (
    DEMO_MODEL,
    AsJson,
    Chat,
    Draft,
    Drafter,
    DraftQuantization,
    Dtype,
    DtypeOption,
    FixedK,
    MaxK,
    MaxTokens,
    Quantization,
    Speculation,
    SpeculationMode,
    Target,
    TargetQuantization,
    Threads,
    check_drafter,
    engine_configs,
    speculation_params,
)
from specdec.cli.prompts import read_prompts
from specdec.params import SamplingParams

EXAMPLES = """Examples:

    specdec audit prompts.txt

    specdec audit questions.jsonl --draft smollm2 --draft-quantization int8 --limit 40 --json

Prompts: one text per line, or JSON lines with `prompt` or `turns` (the first turn is used). K is
fixed at 4 unless --speculation auto or --k say otherwise.

Exit status: 0 no divergence (numerical ties are named apart), 1 divergence, 2 bad input."""


class Mode(StrEnum):
    """Modes in which the text must not depend on speculation."""

    GREEDY = "greedy"
    COUPLED = "coupled"
    BOTH = "both"


PromptFile = Annotated[Path, typer.Argument(help="Prompts: text lines or JSON lines, also .gz.")]
ModeOption = Annotated[Mode, typer.Option("--mode", help="How to sample.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use the first N prompts.")]
CoupledTemperature = Annotated[
    float, typer.Option(min=0.01, max=2.0, help="Temperature of coupled mode.")
]
CoupledSeed = Annotated[int, typer.Option(help="Seed of coupled mode.")]
Batch = Annotated[int, typer.Option(min=1, help="Prompts run together.")]
DEFAULT_K = 4


def audit(
    file: PromptFile,
    mode: ModeOption = Mode.BOTH,
    limit: Limit = None,
    chat: Chat = False,
    max_tokens: MaxTokens = 64,
    temperature: CoupledTemperature = 0.8,
    seed: CoupledSeed = 0,
    batch: Batch = 1,
    speculation: Speculation = SpeculationMode.FIXED,
    k: FixedK = None,
    drafter: Drafter = None,
    as_json: AsJson = False,
    target: Target = DEMO_MODEL,
    target_quantization: TargetQuantization = Quantization.NONE,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    dtype: DtypeOption = Dtype.AUTO,
    threads: Threads = None,
    max_num_speculative_tokens: MaxK = 8,
) -> None:
    """Generate every prompt with speculation on and off, and compare token by token."""
    if speculation is SpeculationMode.OFF:
        raise typer.BadParameter("an audit compares with speculation: use fixed or auto")
    check_drafter(drafter, draft, target)
    texts = read_prompts(file, limit)
    if speculation is SpeculationMode.FIXED and k is None:
        k = DEFAULT_K
    wish = speculation_params(speculation, k, drafter)
    config, drafting = engine_configs(
        target,
        target_quantization,
        draft,
        draft_quantization,
        dtype,
        threads,
        max_num_speculative_tokens,
    )
    modes = [Mode.GREEDY, Mode.COUPLED] if mode is Mode.BOTH else [mode]
    results: list[Comparison] = []
    with (
        open_engine(config, drafting) as engine,
        progress_bar("auditing", len(texts) * len(modes)) as advance,
    ):
        prompts = [encode(engine.tokenizer, text, chat) for text in texts]
        for each in modes:
            params = _params(each, max_tokens, temperature, seed)
            results += compare(engine, prompts, each.value, params, wish, batch, advance)
        verdict = summarise(results)
        if as_json:
            print_json(verdict)
        else:
            _print(output(), results, verdict, decoder(engine.tokenizer))
    _exit(verdict)


def _exit(verdict: dict[str, Any]) -> None:
    if not verdict["num_draft_tokens"]:
        messages().print("[yellow]nothing was drafted, so nothing was put to the test[/]")
    if verdict["num_divergences"]:
        raise typer.Exit(ExitCode.FAILED)


def _params(mode: Mode, max_tokens: int, temperature: float, seed: int) -> SamplingParams:
    if mode is Mode.GREEDY:
        return SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)


def summarise(results: list[Comparison]) -> dict[str, Any]:
    """The object that `--json` prints: totals, and every place where texts part."""
    parted = [result for result in results if result.divergence is not None]
    ties = [result for result in parted if result.divergence and result.divergence.is_tie]
    return {
        "num_comparisons": len(results),
        "num_tokens": sum(result.num_tokens for result in results),
        "num_draft_tokens": sum(result.num_draft_tokens for result in results),
        "num_accepted_tokens": sum(result.num_accepted_tokens for result in results),
        "num_divergences": len(parted) - len(ties),
        "num_ties": len(ties),
        "tie_gap": TIE_GAP,
        "divergences": [_as_dict(result) for result in parted],
    }


def _as_dict(result: Comparison) -> dict[str, Any]:
    assert result.divergence is not None
    return {
        "prompt_index": result.prompt_index,
        "mode": result.mode,
        "is_tie": result.divergence.is_tie,
        **asdict(result.divergence),
    }


def _print(
    console: Console, results: list[Comparison], verdict: dict[str, Any], decode: Decode
) -> None:
    if verdict["divergences"]:
        console.print(_table(verdict["divergences"], decode))
    modes = ", ".join(dict.fromkeys(result.mode for result in results))
    good = not verdict["num_divergences"]
    word = "[bold green]no divergence[/]" if good else "[bold red]divergence[/]"
    console.print(
        f"{word}: {verdict['num_comparisons']} comparisons ({modes}), "
        f"{verdict['num_tokens']} tokens, {verdict['num_draft_tokens']} drafted, "
        f"{verdict['num_accepted_tokens']} accepted, {verdict['num_divergences']} diverged, "
        f"{verdict['num_ties']} tied (gap below {TIE_GAP:g})"
    )


def _table(divergences: list[dict[str, Any]], decode: Decode) -> Table:
    table = Table(
        "prompt", "mode", "position", "off", "on", "logit gap", "verdict", box=None, pad_edge=False
    )
    for entry in divergences:
        gap = entry["gap"]
        table.add_row(
            str(entry["prompt_index"] + 1),
            entry["mode"],
            str(entry["position"]),
            _token(entry["token_id_off"], decode),
            _token(entry["token_id_on"], decode),
            "-" if gap is None else f"{gap:.2e}",
            "[yellow]tie[/]" if entry["is_tie"] else "[red]diverged[/]",
        )
    return table


def _token(token_id: int | None, decode: Decode) -> str:
    return "(end)" if token_id is None else escape(f"{decode([token_id])!r} {token_id}")
