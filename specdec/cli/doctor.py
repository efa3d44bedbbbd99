"""`specdec doctor`: can this machine serve this pair of models, and if not, what is missing?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from specdec.cli import checks
from specdec.cli.checks import Check, Verdict
from specdec.cli.console import ExitCode, output, print_json, status
from specdec.cli.options import (
    DEMO_MODEL,
    AsJson,
    Draft,
    DraftQuantization,
    Dtype,
    DtypeOption,
    Quantization,
    Target,
    TargetQuantization,
)

if TYPE_CHECKING:
    from specdec.config import ModelConfig

EXAMPLES = """Examples:

    specdec doctor

    specdec doctor --target meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 4 --json

Exit status: 0 ready, 1 a check failed."""

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(
    target: Target = DEMO_MODEL,
    target_quantization: TargetQuantization = Quantization.NONE,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Ranks of the target.")] = 1,
    draft: Draft = None,
    draft_quantization: DraftQuantization = Quantization.NONE,
    dtype: DtypeOption = Dtype.AUTO,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="HTTP port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="gRPC port.")] = 9000,
    as_json: AsJson = False,
) -> None:
    """Check versions, devices, memory, ports and whether the models fit."""
    from specdec.config import ModelConfig

    models = {
        "target": ModelConfig(
            model=target,
            quantization=target_quantization.value,
            dtype=dtype.value,
            tensor_parallel_size=tensor_parallel_size,
        )
    }
    if draft is not None:
        models["draft"] = ModelConfig(
            model=draft, quantization=draft_quantization.value, dtype=dtype.value
        )
    with status("looking around"):
        found = list(_checks(models, {"http": http_port, "grpc": grpc_port}))
    ready = all(check.verdict is not Verdict.FAIL for check in found)
    if as_json:
        report = {"ready": ready, "checks": [asdict(check) for check in found]}
        print_json(report)
    else:
        _print(found, ready)
    if not ready:
        raise typer.Exit(ExitCode.FAILED)


def _checks(models: dict[str, ModelConfig], ports: dict[str, int]) -> Iterator[Check]:
    yield from checks.check_packages()
    yield from checks.check_devices()
    yield checks.check_memory()
    yield checks.check_shared_memory()
    yield checks.check_cache_folder()
    yield from _model_checks(models)
    for name, port in ports.items():
        yield checks.check_port(name, port)


def _model_checks(models: dict[str, ModelConfig]) -> Iterator[Check]:
    from specdec.config import CacheConfig

    fits = []
    for role, model in models.items():
        check, fit = checks.check_model(role, model, CacheConfig())
        yield check
        if fit is not None:
            fits.append(fit)
    if len(fits) == len(models):
        if len(fits) > 1:
            yield checks.check_pair(*fits)
        yield checks.check_fit(fits)


def _print(found: list[Check], ready: bool) -> None:
    table = Table.grid(padding=(0, 2))
    for check in found:
        style = STYLES[check.verdict]
        detail = escape(check.detail) + (f"\n[dim]-> {escape(check.hint)}[/]" if check.hint else "")
        table.add_row(f"[{style}]{check.verdict.value}[/]", check.name, detail)
    console = output()
    console.print(table)
    console.print("[bold green]ready[/]" if ready else "[bold red]not ready[/]")
