"""The curl commands of docs/, run as printed against the demo; those of README are run in
tests/serve/test_readme.py."""

from __future__ import annotations

import subprocess

import pytest

from tests.documents import PAGES, fenced

TIMEOUT_S = 100
COMMANDS = [
    (page.name, line)
    for page in PAGES
    if page.name != "README.md"
    for block in fenced(page, "bash")
    for line in block.splitlines()
    if line.startswith("curl ")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_curl(service, page, line):
    line = line.replace("http://localhost:8000", service.http_url)
    line = line.replace('"smollm2"', f'"{service.model}"')
    assert "localhost" not in line, page
    command = line.replace("curl ", f"curl --noproxy '*' --fail-with-body -m {TIMEOUT_S} ", 1)
    ran = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 10,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    assert ran.stdout.strip()
    assert '"error":' not in ran.stdout


def test_no_curl_stands_where_it_is_not_found():
    """A command in a list or behind a prompt would be indented or follow a `$`."""
    pages = [page for page in PAGES if page.name != "README.md"]
    blocks = [block for page in pages for block in fenced(page, "bash", "console", "sh", "shell")]
    written = sum(
        part.lstrip("$ ").startswith("curl ") for block in blocks for part in block.splitlines()
    )
    assert written == len(COMMANDS) > 0
