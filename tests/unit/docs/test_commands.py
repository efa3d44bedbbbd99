"""Every `specdec` command line in README and docs/ is one that the command line understands."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from specdec.cli.app import app
from tests.documents import (
    PAGES,
    REPOSITORY,
    arguments,
    specdec_lines,
    specdec_mentions,
)

LINES = [(page.name, line) for page in PAGES for line in specdec_lines(page)]
MENTIONS = [(page.name, line) for page in PAGES for line in specdec_mentions(page)]


def resolved(words: list[str]) -> Any:
    """Read a command line as `specdec` would, without running anything."""
    name, *rest = words
    command = typer.main.get_command(app)
    context = command.make_context(name, list(rest))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    return command


def named(words: list[str]) -> Any:
    """The command that the first words name; what follows may be incomplete."""
    command = typer.main.get_command(app)
    for word in words[1:]:
        if not hasattr(command, "commands"):
            break
        assert word in command.commands, word
        command = command.commands[word]
    return command


def check_options(words: list[str]) -> None:
    command = named(words)
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, word


@pytest.mark.parametrize(("page", "line"), LINES)
def test_command_lines_are_understood(page, line):
    words = arguments(line)
    if "..." in line or "--help" in words:
        check_options(words)
    else:
        resolved(words)


@pytest.mark.parametrize(("page", "line"), MENTIONS)
def test_commands_that_are_mentioned_exist(page, line):
    check_options(arguments(line))


def test_the_pages_have_been_read():
    pages = {page for page, _ in LINES}
    assert {"README.md", "index.md", "tuning.md", "rules-of-thumb.md"} <= pages
    assert len(LINES) > 40


@pytest.mark.parametrize("line", ["specdec theory --no-such 3", "specdec no-such", "specdec plan"])
def test_what_does_not_exist_is_found(line):
    with pytest.raises(Exception, match=r"No such|Missing"):
        resolved(arguments(line))


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text("utf-8")):
            assert target in targets, (page.name, target)
