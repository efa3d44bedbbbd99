"""The `specdec` command.

Importing this package is cheap: torch and the engine are loaded inside the commands that need
them, so that `--help` answers at once and a light install can say what it lacks.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the console script."""
    # On a busy machine threads that spin while they wait for each other's cores slow a step down
    # ten times; it must be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from specdec.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"the specdec command needs {error.name}, which the light client install leaves out: "
            "pip install 'specdec[engine]' (or 'specdec[serve]' to run a server)"
        )
    app(prog_name="specdec")
