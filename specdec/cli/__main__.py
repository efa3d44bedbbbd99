"""`python -m specdec.cli` is the `specdec` command."""

from specdec.cli import main

main()
