"""The command line in this process, against the tiny models."""

from __future__ import annotations

import pytest
from command_line import Command


@pytest.fixture
def specdec() -> Command:
    return Command()


@pytest.fixture
def models(tiny_llama, tiny_draft) -> list[object]:
    """Options that name the tiny pair, in the float64 in which equality is demanded."""
    return ["--target", tiny_llama, "--draft", tiny_draft, "--dtype", "float64"]
