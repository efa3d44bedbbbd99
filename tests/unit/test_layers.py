"""The layer contracts of pyproject.toml hold, and importing the package stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "pydantic", "transformers", "ray", "grpc", "typer")


def test_layer_contracts_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    result = subprocess.run(
        [*command, "--no-logo", "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import specdec", ()),
        ("from specdec import Client, AsyncClient", ("grpc",)),
        # Its actor answers the first scrape: torch alone would take it seconds to import.
        ("import deployments.fleet_ledger, deployments.samples", ()),
    ],
)
def test_import_is_light(statement, allowed):
    program = f"{statement}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == repr(list(allowed))


def test_unknown_attribute_of_the_root_is_an_attribute_error():
    import specdec

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = specdec.no_such_name
