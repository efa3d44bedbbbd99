"""The page's logic, tested by Node: differences, percentiles, kinds of tokens, sentences."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Before it, Node takes a file called .js for CommonJS unless a package.json says otherwise.
OLDEST_NODE = (20, 19)


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_scripts_of_the_page(node):
    version = run(node, "--version").stdout.strip().removeprefix("v")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_NODE:
        pytest.skip(f"Node {version} is older than {OLDEST_NODE}")
    files = sorted(TESTS.glob("*.test.js"))
    assert files
    ran = run(node, "--test", *files)
    assert ran.returncode == 0, ran.stdout
