"""`specdec top`: what a fleet does now, in a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from queue import Empty
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from specdec.cli.console import output, print_json
from specdec.cli.options import API_KEY_VARIABLE, AsJson
from specdec.cli.top_rates import History, Reading
from specdec.cli.top_source import Poller, fetch
from specdec.cli.top_view import frame
from specdec.errors import InvalidRequestError

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.5, 60.0
KEY_PERIOD_S = 0.1

EXAMPLES = """Examples:

    specdec top

    specdec top --url http://gateway:8000 --interval 2

    specdec top --once

    specdec top --json

It reads GET /live of the gateway, which asks all target replicas; where the gateway has API keys,
it takes an operator's. Rates and times are over the last ten seconds. q or Ctrl-C quits.

Exit status: 0 done, 1 failed, 2 bad input or no specdec gateway, 3 no answer at the start."""

Url = Annotated[str, typer.Option(help="The gateway's HTTP address.")]
OperatorKey = Annotated[
    str | None, typer.Option("--api-key", envvar=API_KEY_VARIABLE, help="An operator's API key.")
]
Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        help=f"Seconds from one reading to the next, {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}.",
    ),
]
Once = Annotated[
    bool,
    typer.Option("--once", help="Print one frame and exit, as where the output is no terminal."),
]


def top(
    url: Url = "http://localhost:8000",
    api_key: OperatorKey = None,
    interval_s: Interval = 1.0,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Watch a running server: throughput, latency, acceptance, K, replicas."""
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequestError(
            f"interval: must be between {MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g} seconds, "
            f"got {interval_s:g}",
            field="interval",
        )
    history = History()
    history.add(fetch(url, api_key))
    console = output()
    if as_json or once or not console.is_terminal:
        _wait_for_rates(url, api_key, history, interval_s)
        if as_json:
            rates = history.rates()
            reading = history.readings[-1]
            print_json({"reading": reading, "rates": None if rates is None else asdict(rates)})
        else:
            console.print(frame(url, history, None))
        return
    _watch(url, api_key, interval_s, history, console)


def _wait_for_rates(url: str, api_key: str | None, history: History, interval_s: float) -> None:
    """A second reading. A busy gateway may give the first again once: it shares them."""
    for _ in range(3):
        time.sleep(interval_s)
        history.add(fetch(url, api_key))
        if history.rates() is not None:
            return


def _watch(
    url: str, api_key: str | None, interval_s: float, history: History, console: Console
) -> None:
    """Until q or Ctrl-C; whoever restarts the gateway meanwhile is waited for."""
    poller = Poller(url, api_key, interval_s)
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        poller.start()
        try:
            shown: object = None
            while not _pressed("q"):
                for reading in _drained(poller):
                    history.add(reading)
                state = (history.readings[-1]["time_s"], poller.silence, console.size)
                if state != shown:
                    picture = frame(url, history, poller.silence, console.height)
                    live.update(picture, refresh=True)
                    shown = state
        except KeyboardInterrupt:
            return
        finally:
            poller.stop()


def _drained(poller: Poller) -> Iterator[Reading]:
    while True:
        try:
            yield poller.readings.get_nowait()
        except Empty:
            return


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive one by one and are not shown, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    import termios  # not on every system
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(key: str) -> bool:
    """Whether the key is pressed within KEY_PERIOD_S, which it waits for."""
    if not sys.stdin.isatty():
        time.sleep(KEY_PERIOD_S)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], KEY_PERIOD_S)
    return bool(ready) and key.encode() in os.read(sys.stdin.fileno(), 64).lower()
