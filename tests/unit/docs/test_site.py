"""The site builds without a warning, loads nothing from elsewhere, and shows what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.site_hooks import indented
from tests.documents import PAGES, REPOSITORY

MKDOCS = [Path(sys.executable).parent / "mkdocs", "build", "--strict"]
OFFLINE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MKDOCS, "--site-dir", folder, *options],
        cwd=REPOSITORY,
        env={**OFFLINE, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_there_and_its_blocks_are_blocks(site):
    for page in PAGES:
        name = "reference" if page.name == "README.md" else page.stem
        html = (site / f"{name}.html").read_text("utf-8")
        assert "```" not in html, page.name
        assert "](" not in re.sub(r"<pre.*?</pre>|<code.*?</code>", "", html, flags=re.DOTALL)


def test_a_reader_needs_no_network(site):
    loaded = r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"'](https?:|//)"
    for html in site.glob("*.html"):
        assert not re.search(loaded, html.read_text("utf-8")), html.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:|//)", style.read_text("utf-8"))


def test_links_to_files_outside_the_site_become_paths(site):
    html = (site / "reference.html").read_text("utf-8")
    assert "<code>specdec/engine/engine.py</code>" in html
    assert 'href="deployment.html"' in html
    for page in site.glob("*.html"):
        assert 'href="../' not in page.read_text("utf-8"), page.name


def test_a_broken_link_fails_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[nowhere](nowhere.md) and [here](#no-such-anchor)\n")
    settings = (REPOSITORY / "mkdocs.yml").read_text().split("\nhooks:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    broken = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert broken.returncode != 0
    assert "nowhere.md" in broken.stderr


def test_numbered_items_keep_what_belongs_to_them():
    source = "1. one\n\n   ```bash\n   ls\n   ```\n2. two\n   more\n\nafter\n   not an item's"
    assert indented(source) == (
        "1. one\n\n    ```bash\n    ls\n    ```\n\n2. two\n    more\n\nafter\n   not an item's"
    )
