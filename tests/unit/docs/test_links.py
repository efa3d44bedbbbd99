"""Every link inside the repository leads somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.documents import PAGES, REPOSITORY, anchors, prose

PAGE_OF = {page: str(page.relative_to(REPOSITORY)) for page in PAGES}


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=PAGE_OF.get)
def test_links_and_anchors_resolve(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def linked_from(page: Path) -> set[Path]:
    return {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}


def test_readme_and_the_first_page_lead_to_every_page():
    first = REPOSITORY / "docs" / "index.md"
    assert first in linked_from(REPOSITORY / "README.md")
    assert set(PAGES) - {first} <= linked_from(first) | {first}


def test_an_anchor_is_made_as_it_is_linked():
    guide = REPOSITORY / "docs" / "deployment.md"
    assert "how-it-holds-together" in anchors(guide)
    assert "engineconfig-target" in anchors(REPOSITORY / "README.md")


def test_the_navigation_has_every_page_once():
    names = re.findall(r": ([\w-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.name for page in PAGES if page.parent.name == "docs"}
    assert sorted(names) == sorted(pages | {"reference.md"})


def test_the_settings_name_nothing_remote():
    settings = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assert settings["strict"] is True
    assert "http" not in str(settings)
