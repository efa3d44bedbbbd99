"""README's figures, one after the other, each under the command that gives it alone.

    python -m benchmarks.peers [--quick] [--only engine speculation serving round_trip]

Every figure runs in a process of its own, so that none inherits threads, memory or caches of the
one before. Takes about half an hour on two cores; `--quick` takes fewer prompts and says less.
Exit status: the number of figures that could not be measured; a missed aim is no failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import machine
from specdec.model.catalog import fetch

FIGURES: dict[str, list[str]] = {
    "engine": ["engine_speed --per-category 3"],
    "speculation": [
        "speculation --per-category 5",
        "speculation --per-category 3 --quantization int8",
    ],
    "serving": ["serving --repeats 5"],
    "round_trip": ["round_trip --rounds 2000", "round_trip --rounds 500 --stepping"],
}
QUICK = {"per-category": "1", "repeats": "1", "rounds": "200"}
TIMEOUT_S = 3600.0


def shortened(command: str) -> str:
    """The command with the smallest samples that still say something."""
    words = command.split()
    for name, value in QUICK.items():
        if f"--{name}" in words:
            words[words.index(f"--{name}") + 1] = value
    return " ".join(words)


def run(command: str) -> bool:
    """One benchmark, its output passed through; whether it ended well."""
    print(f"\n$ python -m benchmarks.{command}", flush=True)
    words = [sys.executable, "-W", "ignore", "-m", *f"benchmarks.{command}".split()]
    with subprocess.Popen(words, cwd=Path(__file__).parents[1]) as process:
        try:
            return process.wait(TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            print(f"not finished within {TIMEOUT_S:g} s", flush=True)
            process.terminate()  # it ends what it started
            return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smallest samples")
    parser.add_argument("--only", nargs="+", choices=tuple(FIGURES), default=list(FIGURES))
    arguments = parser.parse_args()
    print(machine())
    fetch("smollm2")
    commands = [command for name in arguments.only for command in FIGURES[name]]
    if arguments.quick:
        commands = [shortened(command) for command in commands]
    return sum(not run(command) for command in commands)


if __name__ == "__main__":
    sys.exit(main())
