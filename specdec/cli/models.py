"""`specdec models`: the models that specdec can fetch by name, and their copies on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from specdec.cli.console import CommandGroup, ExitCode, messages, output, print_json
from specdec.model import catalog

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Fetch, list, locate and remove models by name."
)

Name = Annotated[str, typer.Argument(help="A name from `specdec models list`.")]

STAGES = {
    "wait": "waiting for another fetch",
    "download": "downloading",
    "check": "checking",
    "extract": "extracting",
    "convert": "converting",
}


@app.command(epilog="Example:\n\n    specdec models fetch smollm2")
def fetch(name: Name) -> None:
    """Download a model, check its hash and convert it once. Prints its folder."""
    with _fetch_progress(name) as report:
        folder = catalog.fetch(name, progress=report)
    output().print(str(folder), markup=False)


@contextmanager
def _fetch_progress(name: str) -> Iterator[Callable[[catalog.Progress], None]]:
    """A bar on stderr that follows the stages of a fetch."""
    console = messages()
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task(name, total=None)
        stage = ""

        def report(update: catalog.Progress) -> None:
            nonlocal stage
            if update.stage != stage:
                stage = update.stage
                progress.reset(task, total=update.total)
            progress.update(
                task,
                description=f"{name}: {STAGES.get(stage, stage)}",
                completed=update.done,
                total=update.total,
            )

        yield report


@app.command("list", epilog="Example:\n\n    specdec models list --json")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the catalog, and which of its models are on this machine."""
    found = catalog.list_models()
    if as_json:
        print_json([_as_dict(status) for status in found])
        return
    table = Table("name", "parameters", "size", "licence", "folder", box=None, pad_edge=False)
    for status in found:
        model = status.model
        table.add_row(
            model.name,
            model.parameters,
            f"{model.size_bytes / 1e6:.0f} MB",
            model.license,
            str(status.path) if status.path else "not fetched",
        )
    output().print(table)


def _as_dict(status: catalog.CatalogStatus) -> dict[str, object]:
    model = status.model
    return {
        "name": model.name,
        "description": model.description,
        "parameters": model.parameters,
        "size_bytes": model.size_bytes,
        "license": model.license,
        "path": str(status.path) if status.path else None,
    }


@app.command(epilog="Example:\n\n    ls $(specdec models path smollm2)")
def path(name: Name) -> None:
    """Print the folder of a fetched model; exit status 2 where it is not on this machine."""
    if name not in catalog.CATALOG:
        known = ", ".join(sorted(catalog.CATALOG))
        raise typer.BadParameter(f"unknown model {name!r}; the catalog has {known}")
    output().print(catalog.resolve(name), markup=False)


@app.command(epilog="Example:\n\n    specdec models remove gemma3-270m")
def remove(name: Name) -> None:
    """Delete the copy of a model; exit status 1 where there is none."""
    if not catalog.remove(name):
        messages().print(f"{name} is not on this machine")
        raise typer.Exit(ExitCode.FAILED)
    messages().print(f"removed {name}")
