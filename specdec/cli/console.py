"""Where the command line writes, how it fails, and how it shows progress.

Results go to standard output, everything else to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from specdec.errors import (
    ConfigError,
    DeadlineError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestNotFoundError,
    SpecdecError,
    UnauthenticatedError,
    UnavailableError,
)


class ExitCode(IntEnum):
    """What the exit status says. A usage error is 2, as click has it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    INTERRUPTED = 130


USAGE_ERRORS = (
    ConfigError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestNotFoundError,
    UnauthenticatedError,
)
RETRYABLE_ERRORS = (UnavailableError, OverloadedError, DeadlineError)


def output() -> Console:
    """Standard output. Made anew for each command, so that a redirected stream is honoured."""
    return Console(highlight=False, soft_wrap=True, emoji=False)


def print_json(value: object) -> None:
    """One JSON value on one line of standard output."""
    typer.echo(json.dumps(value))


def messages() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def exit_code(error: SpecdecError) -> ExitCode:
    """The exit status for an error that ended a command."""
    if isinstance(error, USAGE_ERRORS):
        return ExitCode.USAGE
    if isinstance(error, RETRYABLE_ERRORS):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED


class CommandGroup(TyperGroup):
    """A group whose commands may raise SpecdecError: one line on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except SpecdecError as error:
            messages().print(f"[bold red]error:[/] {escape(error.message)}")
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            messages().print("interrupted")
            ctx.exit(ExitCode.INTERRUPTED)


@contextmanager
def status(text: str) -> Iterator[None]:
    """A spinner on stderr while something of unknown length goes on; silent when piped."""
    with messages().status(text):
        yield


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """A counted bar on stderr, one further with each call; it vanishes when done and when piped."""
    console = messages()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task(description, total=total)
        yield lambda: progress.advance(task)
