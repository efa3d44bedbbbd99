"""`specdec characterize`: how much of a draft is accepted, over temperature, top-p and task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli.acceptance_tables import print_tables
from specdec.cli.console import messages, output, print_json, progress_bar
from specdec.cli.local_engine import encode, loading
from specdec.cli.options import (
    DEMO_MODEL,
    AsJson,
    Chat,
    Draft,
    DraftQuantization,
    Dtype,
    DtypeOption,
    MaxTokens,
    Quantization,
    Target,
    TargetQuantization,
    Threads,
    engine_configs,
)
from specdec.cli.prompts import Prompt, read_categories
from specdec.errors import ConfigError, InvalidRequestError
from specdec.params import SamplingParams

if TYPE_CHECKING:
    from specdec.config import ModelConfig
    from specdec.simulation.characterization.study import Models, Study
    from specdec.simulation.characterization.summary import Measured, Row
    from specdec.simulation.characterization.traces import Trace

EXAMPLES = """Examples:

    specdec characterize --prompts prompts.txt --draft smollm2 --draft-quantization int8

    specdec characterize --prompts questions.jsonl --chat --draft-layers 10 --draft-layers 20
    --temperatures 0,0.5,1,1.5 --top-ps 0.9,1 --output acceptance.csv --plot acceptance.svg

    specdec characterize --prompts prompts.txt --draft smollm2 --draft-quantization int8
    --temperatures 1 --top-ps 1 --measure

Prompts: one text per line, or JSON lines with `prompt` or `turns` and `category`, also .gz.
docs/characterization.md explains every column."""

NGRAM_RANGE = (2, 4)

PromptFile = Annotated[Path, typer.Option("--prompts", help="Prompts: text or JSON lines.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use the first N of each category.")]
Temperatures = Annotated[str, typer.Option(help="Comma-separated; 0 is greedy.")]
TopPs = Annotated[str, typer.Option("--top-ps", help="Comma-separated nucleus masses.")]
DraftLayers = Annotated[
    list[int] | None,
    typer.Option(min=1, help="Add the target's first N layers as a drafter; may be repeated."),
]
Ngram = Annotated[bool, typer.Option("--ngram/--no-ngram", help="Add prompt lookup as a drafter.")]
K = Annotated[int, typer.Option("--k", min=1, max=128, help="Draft tokens per round.")]
Seed = Annotated[int, typer.Option(help="Seed of the first prompt; each next has one more.")]
MaxLawEntries = Annotated[
    int, typer.Option(min=1, max=1024, help="Entries of the law that a draft sends.")
]
ContextTemperature = Annotated[
    float | None,
    typer.Option(help="Judge all cells on the same texts, sampled at this temperature, top-p 1."),
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Run the engine, too, and add its own acceptance.")
]
OutputFile = Annotated[Path | None, typer.Option("--output", help="Write all rows as CSV.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw to .png or .svg.")]


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be read: models by name, and prompts as (category, token ids, seed)."""

    target: ModelConfig
    draft: ModelConfig | None
    draft_layers: Sequence[int]
    ngram: bool
    prompts: Sequence[tuple[str, list[int], int]]


def characterize(
    prompts: PromptFile,
    limit: Limit = None,
    chat: Chat = False,
    temperatures: Temperatures = "0,0.3,0.6,0.8,1,1.2,1.5",
    top_ps: TopPs = "0.7,0.8,0.9,1",
    max_tokens: MaxTokens = 32,
    k: K = 4,
    seed: Seed = 0,
    context_temperature: ContextTemperature = None,
    measure: MeasureOption = False,
    target: Target = DEMO_MODEL,
    target_quantization: TargetQuantization = Quantization.NONE,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    draft_layers: DraftLayers = None,
    ngram: Ngram = True,
    dtype: DtypeOption = Dtype.AUTO,
    threads: Threads = None,
    max_law_entries: MaxLawEntries = 128,
    output_file: OutputFile = None,
    plot: PlotFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure acceptance, and its bounds, of real drafters over temperature, top-p and task."""
    _check_files(output_file, plot)
    texts = read_categories(prompts, limit)
    cells = _numbers("temperatures", temperatures), _numbers("top-ps", top_ps)
    engine, drafting = engine_configs(
        target, target_quantization, draft, draft_quantization, dtype, threads, k
    )
    named = [engine.target] if drafting is None else [engine.target, drafting.draft]
    with loading([config.model for config in named]):
        study = _study(*cells, max_tokens, k, seed, max_law_entries, context_temperature)
        task = _Task(
            target=engine.target,
            draft=None if drafting is None else drafting.draft,
            draft_layers=draft_layers or [],
            ngram=ngram,
            prompts=_encoded(texts, engine.target, chat, seed),
        )
        models = _load(task, study)
    rows = _rows(models, study, task, measure)
    _write(rows, output_file, plot)
    if as_json:
        print_json(_report(study, rows))
    else:
        print_tables(output(), rows)


def _check_files(output_file: Path | None, plot: Path | None) -> None:
    """Refuse what could not be written at the end of a long run."""
    if output_file is not None and not output_file.parent.is_dir():
        raise ConfigError(f"output: there is no folder {output_file.parent}", field="output")
    if plot is not None:
        from specdec.simulation.plots import check_path

        check_path(plot)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequestError(
            f"{name}: must be numbers separated by commas, got {text!r}", field=name
        ) from None


def _study(
    temperatures: list[float],
    top_ps: list[float],
    max_tokens: int,
    k: int,
    seed: int,
    max_law_entries: int,
    context_temperature: float | None,
) -> Study:
    from specdec.simulation.characterization.study import Study, grid

    SamplingParams(seed=seed).validate(vocab_size=1)
    context = None if context_temperature is None else grid([context_temperature], [1.0])[0]
    return Study(
        cells=grid(temperatures, top_ps),
        max_tokens=max_tokens,
        k=k,
        seed=seed,
        max_law_entries=max_law_entries,
        context=context,
    )


def _encoded(
    texts: Sequence[Prompt], target: ModelConfig, chat: bool, seed: int
) -> list[tuple[str, list[int], int]]:
    """(category, token ids, seed) of each prompt."""
    from specdec.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(target)
    return [
        (text.category, encode(tokenizer, text.text, chat), seed + number)
        for number, text in enumerate(texts)
    ]


def _load(task: _Task, study: Study) -> Models:
    from specdec.simulation.characterization.models import load_models
    from specdec.simulation.characterization.reader import pool_for

    longest = max(len(prompt_ids) for _, prompt_ids, _ in task.prompts)
    pool = pool_for(longest, len(study.texts), study.max_tokens)
    models = load_models(
        task.target, task.draft, task.draft_layers, pool, NGRAM_RANGE if task.ngram else None
    )
    shortest = min(e.model_max_len for e in (models.target, *models.drafts.values()))
    if longest + study.max_tokens > shortest:
        raise InvalidRequestError(
            f"prompts: {longest} tokens and {study.max_tokens} new ones exceed the context of "
            f"{shortest} tokens",
            field="prompts",
        )
    return models


def _rows(models: Models, study: Study, task: _Task, measure: bool) -> list[Row]:
    from specdec.simulation.characterization.summary import summarise
    from specdec.simulation.characterization.traces import read_prompt

    traces: list[Trace] = []
    with progress_bar("reading prompts", len(task.prompts)) as advance:
        for category, prompt_ids, seed in task.prompts:
            traces += read_prompt(models, study, category, prompt_ids, seed)
            advance()
    measured = _measure(models, study, task) if measure else []
    return summarise(traces, measured, study.k)


def _measure(models: Models, study: Study, task: _Task) -> list[Measured]:
    from specdec.cli.acceptance_check import drafter_names, measure

    num_runs = len(drafter_names(models)) * len(task.prompts)
    with progress_bar("running the engine", num_runs) as advance:
        draft = task.draft or task.target
        return list(measure(models, study, task.target, draft, task.prompts, advance))


def _write(rows: Sequence[Row], output_file: Path | None, plot: Path | None) -> None:
    from specdec.simulation.characterization.summary import to_csv

    if output_file is not None:
        _write_text(output_file, to_csv(rows))
    if plot is not None:
        from specdec.simulation.characterization.figure import draw

        draw(plot, rows)
    for path in (output_file, plot):
        if path is not None:
            messages().print(f"wrote {path}")


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"output: cannot write {path}: {error.strerror}", field="output"
        ) from error


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    from specdec.simulation.characterization.summary import as_dict

    return {
        "k": study.k,
        "max_tokens": study.max_tokens,
        "seed": study.seed,
        "max_law_entries": study.max_law_entries,
        "context_temperature": study.context.temperature if study.context else None,
        "rows": [as_dict(row) for row in rows],
    }
