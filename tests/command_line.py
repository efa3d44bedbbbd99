"""The command line in this process, as a callable for tests."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from specdec.cli.app import app


class Command:
    """Runs `specdec` with arguments and keeps what it printed."""

    def __call__(self, *arguments: object, code: int = 0, input: str | None = None):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)
        crashed = result.exception is not None and not isinstance(result.exception, SystemExit)
        assert not crashed, result.exc_info
        assert result.exit_code == code, (result.exit_code, result.output)
        return result

    def json(self, *arguments: object, code: int = 0):
        """The JSON object that the command printed with --json."""
        return json.loads(self(*arguments, "--json", code=code).stdout)
