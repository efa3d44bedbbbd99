"""The command line in this process: commands that need no model."""

from __future__ import annotations

import pytest
from command_line import Command


@pytest.fixture
def specdec() -> Command:
    return Command()
