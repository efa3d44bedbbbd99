"""The command's tree: one line per command, each in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec import __version__
from specdec.cli import (
    audit,
    characterize,
    doctor,
    drift,
    explain,
    generate,
    models,
    plan,
    profile,
    serve,
    simulate,
    theory,
    top,
)
from specdec.cli.console import CommandGroup

app = typer.Typer(
    name="specdec",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Serve language models faster by speculation, and unchanged.",
    epilog=(
        "Start here:\n\n    specdec models fetch smollm2\n\n"
        '    specdec generate "Once upon a time" --show\n\n    specdec serve'
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=generate.EXAMPLES)(generate.generate)
app.command(epilog=explain.EXAMPLES)(explain.explain)
app.command(epilog=top.EXAMPLES)(top.top)
app.add_typer(models.app, name="models")
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command(epilog=audit.EXAMPLES)(audit.audit)
app.command(epilog=profile.EXAMPLES)(profile.profile)
app.command(epilog=theory.EXAMPLES)(theory.theory)
app.command(epilog=simulate.EXAMPLES)(simulate.simulate)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=drift.EXAMPLES)(drift.drift)
app.command(epilog=characterize.EXAMPLES)(characterize.characterize)
