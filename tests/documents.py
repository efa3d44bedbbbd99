"""What stands in README and docs/, for the tests that hold the pages to their word."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Printed:
    """A command of a console block and the lines below it; `...` stands for any lines."""

    page: str
    command: str
    lines: tuple[str, ...]


def text(page: Path) -> str:
    return page.read_text("utf-8")


def prose(page: Path) -> str:
    """The page without fenced blocks."""
    return FENCE.sub("", text(page))


def fenced(page: Path, *languages: str) -> list[str]:
    """The blocks of these languages, without their indentation, with continued lines joined."""
    blocks = [match for match in FENCE.finditer(text(page)) if match[2] in languages]
    return [
        re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE).replace("\\\n", " ")
        for match in blocks
    ]


def anchors(page: Path) -> set[str]:
    """What can be linked to, by the rule that turns headings into anchors."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def printed(page: Path) -> list[Printed]:
    """The commands of the page's console blocks, each with what it is said to print."""
    found = []
    for block in fenced(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip().split("\n")
            found.append(Printed(page.name, " ".join(command.split()), tuple(lines)))
    return found


def specdec_lines(page: Path) -> list[str]:
    """Every whole `specdec` command line: in shell blocks, and after a prompt in console blocks."""
    lines = [line for block in fenced(page, "bash") for line in block.splitlines()]
    lines += [entry.command for entry in printed(page)]
    return [line.strip() for line in lines if "specdec" in arguments(line)[:1]]


def specdec_mentions(page: Path) -> list[str]:
    """Every `specdec COMMAND` that running text names, with the options that it gives."""
    return re.findall(r"`(specdec [a-z][^`]*)`", prose(page))


def arguments(line: str) -> list[str]:
    """A shell line's words, without comments, leading variables, and dots that leave words out."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return [word for word in words if word != "..."]
