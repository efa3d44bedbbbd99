"""`specdec profile`: what do steps of these models take on this machine?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from specdec.cli.console import output, print_json, progress_bar
from specdec.cli.local_engine import open_engine
from specdec.cli.options import (
    DEMO_MODEL,
    ENGINE,
    AsJson,
    Draft,
    DraftQuantization,
    Dtype,
    DtypeOption,
    MaxK,
    Quantization,
    Target,
    TargetQuantization,
    Threads,
    engine_configs,
)
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from specdec.config import DraftConfig, EngineConfig
    from specdec.engine import Engine
    from specdec.engine.draft_engine import DraftEngine
    from specdec.speculation.controller.profile import ModelProfile

EXAMPLES = """Examples:

    specdec profile --target smollm2 --draft smollm2 --draft-quantization int8

    specdec profile --target meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --json

    specdec profile --target smollm2 --output smollm2.json

The times are kept in the cache folder and used at every start with the same model, numbers, device,
ranks and threads. --output writes them to a file instead: name it in speculation.profile, or give
it to specdec simulate. Let nothing else run on the machine meanwhile."""

OutputFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write here instead of the cache folder."),
]
Ranks = Annotated[int, typer.Option(min=1, help="Ranks of the target.", rich_help_panel=ENGINE)]
Sequences = Annotated[
    int, typer.Option(min=1, help="Most sequences in a step.", rich_help_panel=ENGINE)
]
Tokens = Annotated[int, typer.Option(min=1, help="Most tokens in a step.", rich_help_panel=ENGINE)]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="Runs per point; the least counts.")]
SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def profile(
    target: Target = DEMO_MODEL,
    target_quantization: TargetQuantization = Quantization.NONE,
    tensor_parallel_size: Ranks = 1,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    dtype: DtypeOption = Dtype.AUTO,
    threads: Threads = None,
    max_num_sequences: Sequences = 32,
    max_num_batched_tokens: Tokens = 512,
    max_num_speculative_tokens: MaxK = 8,
    repeats: Repeats = 3,
    output_file: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure what steps of a target and rounds of a draft take, and keep it."""
    _check_output(output_file)
    config, drafting = engine_configs(
        target,
        target_quantization,
        draft,
        draft_quantization,
        dtype,
        threads,
        max_num_speculative_tokens,
    )
    sizes = {
        "max_num_sequences": max_num_sequences,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    config = config.model_copy(
        update={
            "target": config.target.model_copy(
                update={"tensor_parallel_size": tensor_parallel_size}
            ),
            "scheduler": config.scheduler.model_copy(update=sizes),
        }
    )
    with open_engine(config, drafting) as engine:
        profiles = _measure(engine, config, drafting, repeats)
    files = _keep(profiles, output_file)
    if as_json:
        print_json({"profiles": [asdict(p) for p in profiles], "files": [str(f) for f in files]})
    else:
        _print(profiles, files)


def _check_output(path: Path | None) -> None:
    """Before minutes are spent on what cannot be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(
            f"--output {path}: must be a file in a folder that exists", field="output"
        )


def _measure(
    engine: Engine, config: EngineConfig, drafting: DraftConfig | None, repeats: int
) -> list[ModelProfile]:
    from specdec.engine.profiles import profile_key
    from specdec.engine.profiling import (
        StepLimits,
        draft_shapes,
        measure_drafts,
        measure_steps,
        step_shapes,
    )
    from specdec.model.loader import resolve_device
    from specdec.speculation.controller.profile import ModelProfile, joined

    limits = StepLimits(
        config.scheduler.max_num_batched_tokens,
        config.scheduler.max_num_sequences,
        config.speculation.max_num_speculative_tokens,
    )
    shapes = step_shapes(engine.executor, limits)
    draft_engine = _draft_engine(engine) if drafting is not None else None
    rounds = []
    if draft_engine is not None:
        rounds = draft_shapes(draft_engine, limits.max_num_sequences, repeats)
    with progress_bar("measuring", len(shapes) + len(rounds)) as advance:
        steps = measure_steps(engine.executor, shapes, limits, repeats, advance)
        profiles = [ModelProfile(profile_key(config.target, engine.executor.device), steps)]
        if draft_engine is not None and drafting is not None:
            drafts = measure_drafts(draft_engine, rounds, repeats, advance)
            key = profile_key(drafting.draft, resolve_device(drafting.draft.device))
            profiles.append(ModelProfile(key, drafts=drafts))
    return joined(profiles)


def _draft_engine(engine: Engine) -> DraftEngine:
    from specdec.engine.local_draft import LocalDraftProposer

    proposer = engine.drafters["draft"]
    assert isinstance(proposer, LocalDraftProposer)
    return proposer.engine


def _keep(profiles: list[ModelProfile], path: Path | None) -> list[Path]:
    from specdec.engine.profiles import profile_folder
    from specdec.speculation.controller.profile import store_profile, write_profiles

    if path is None:
        return [store_profile(profile_folder(), profile) for profile in profiles]
    write_profiles(path, profiles)
    return [path]


def _print(profiles: list[ModelProfile], files: list[Path]) -> None:
    console = output()
    for measured in profiles:
        key = measured.key
        ranks = f", {key.tensor_parallel_size} ranks" if key.tensor_parallel_size > 1 else ""
        threads = f", {key.num_threads} threads" if key.num_threads else ""
        numbers = key.dtype if key.quantization == "none" else key.quantization
        title = f"{key.model}, {numbers}, {key.device}{ranks}{threads}"
        console.print(f"[bold]{escape(title)}[/]")
        if measured.steps:
            console.print(_steps_table(measured))
        if measured.drafts:
            console.print(_drafts_table(measured))
    console.print(f"kept in {', '.join(escape(str(file)) for file in files)}")


def _steps_table(measured: ModelProfile) -> Table:
    """One row per number of tokens, one column per amount of cached text."""
    kv_levels = sorted({point.num_kv_tokens for point in measured.steps})
    seconds = {(p.num_tokens, p.num_kv_tokens): p.seconds for p in measured.steps}
    table = Table("tokens", *(f"{kv} KV" for kv in kv_levels), box=None, title="target step, ms")
    for num_tokens in sorted({n for n, _ in seconds} & {*SHOWN_TOKENS, _most(measured)}):
        cells = [seconds.get((num_tokens, kv)) for kv in kv_levels]
        table.add_row(str(num_tokens), *map(_ms, cells))
    return table


def _most(measured: ModelProfile) -> int:
    return max(point.num_tokens for point in measured.steps)


def _drafts_table(measured: ModelProfile) -> Table:
    """One row per number of sequences, one column per depth."""
    depths = sorted({point.depth for point in measured.drafts})
    seconds = {(p.num_sequences, p.depth): p.seconds for p in measured.drafts}
    table = Table("sequences", *(f"K {d}" for d in depths), box=None, title="draft round, ms")
    for batch in sorted({batch for batch, _ in seconds}):
        table.add_row(str(batch), *(_ms(seconds.get((batch, depth))) for depth in depths))
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
