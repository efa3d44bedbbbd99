"""What mkdocs needs to be told about pages that are written for the repository first.

The README becomes a page of the site. Links to files that are no pages become their paths, since
the site does not carry the repository. Fences and lists are brought into Python-Markdown's form.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
README = "reference.md"
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
# A word after a fence's language tells our tests what to do with the block.
TAGGED_FENCE = re.compile(r"^( *```\w+) \w+$", re.MULTILINE)
ITEM = re.compile(r"\d+\. ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the README among the pages."""
    from mkdocs.structure.files import File

    text = (REPOSITORY / "README.md").read_text("utf-8")
    files.append(File.generated(config, README, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page as Python-Markdown wants it."""
    base = REPOSITORY if page.file.src_uri == README else Path(config.docs_dir)
    markdown = LINK.sub(lambda link: _site_link(link, base, Path(config.docs_dir)), markdown)
    return indented(TAGGED_FENCE.sub(r"\1", markdown))


def _site_link(link: re.Match[str], base: Path, docs: Path) -> str:
    image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    if "://" in target:
        return link[0]
    path = Path(os.path.normpath(base / target))
    if not path.exists():
        # mkdocs names the page and the link, and the build fails.
        return link[0]
    if path == REPOSITORY / "README.md":
        return f"[{text}]({README}{anchor})"
    if path.is_relative_to(docs):
        return f"{image}[{text}]({path.relative_to(docs)}{anchor})"
    if image:
        # The site does not carry it: the build fails here, too.
        return link[0]
    shown = f"`{path.relative_to(REPOSITORY)}`"
    return shown if text.strip("`/") in shown else f"{text} ({shown})"


def indented(markdown: str) -> str:
    """Numbered items apart, and what belongs to one by four spaces instead of three."""
    lines: list[str] = []
    inside = False
    for line in markdown.split("\n"):
        begins, belongs = bool(ITEM.match(line)), line.startswith("   ")
        if begins and inside:
            lines.append("")
        inside = begins or (inside and (belongs or not line))
        lines.append(f" {line}" if inside and belongs else line)
    return "\n".join(lines)
