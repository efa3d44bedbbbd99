"""One frame of `specdec top`: a reading and its rates as lines that fit the terminal.

80 columns and 24 rows are enough. What does not fit is left out from the end of its list, and said.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec.cli.top_rates import History, Latency, Rates, Reading
from specdec.cli.top_source import Silence

HEAD_ROWS = 8
MIN_COLUMN_ROWS = 3
BAR_CELLS = 16
SPARK_CELLS = 14
SPARKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"
UNKNOWN = "-"
HEADING = "bold cyan"
PHASE_STYLES = {"on": "green", "guard_off": "bold red", "off": "yellow"}
LATENCY_NAMES = {
    "time_to_first_token": "TTFT",
    "time_per_output_token": "TPOT",
    "inter_token_latency": "ITL",
}
GUARD_TRIPS = {"slower_than_baseline": "slower", "first_tokens_later": "first tokens later"}


def frame(
    url: str, history: History, silence: Silence | None, height: int | None = None
) -> RenderableType:
    """The picture after the last reading of `history`, which has one. With a `height`, as many
    rows at most."""
    reading, rates = history.readings[-1], history.rates()
    head = [
        _title(url, reading, silence),
        *_throughput(reading, rates, history.generation_tokens_per_s),
        _latencies(rates),
        Text(),
        *_speculation(reading, rates),
    ]
    lists = [_targets(reading), _drafters(reading), _drafts(reading)]
    room = None if height is None else height - HEAD_ROWS - 1
    columns = _columns(rates, history, room and max(room // 3, room - sum(map(len, lists))))
    rest = room and room - columns.row_count
    return Group(*head, columns, Text(), *_fitted(lists, rest))


# -- the head ----------------------------------------------------------------------------------


def _title(url: str, reading: Reading, silence: Silence | None) -> Text:
    if silence is not None:
        since = time.strftime("%H:%M:%S", time.localtime(silence.since_s))
        state = (f"no answer since {since}", "bold red")
    else:
        state = (time.strftime("%H:%M:%S", time.localtime(reading["time_s"])), "dim")
    return _line(
        ("specdec top", "bold"),
        (f"  {reading['model']}", HEADING),
        (f"  {reading['version']}  {url}  ", "dim"),
        state,
    )


def _throughput(reading: Reading, rates: Rates | None, points: Sequence[float]) -> Iterable[Text]:
    now = reading["now"]
    yield _line(
        ("tokens/s ", "dim"),
        (_number(_rate(rates, "generation_tokens_per_s")), "bold"),
        (" out  ", "dim"),
        _number(_rate(rates, "prompt_tokens_per_s")),
        (" in   requests/s ", "dim"),
        _number(_rate(rates, "requests_per_s")),
        ("   running ", "dim"),
        _count(now["running"]),
        ("  waiting ", "dim"),
        _count(now["waiting"]),
        ("  KV ", "dim"),
        _percent(now["kv_usage"]),
    )
    yield _line(("out      ", "dim"), (sparkline(list(points)[-66:]), "green"))


def _latencies(rates: Rates | None) -> Text:
    parts: list[Any] = []
    for name, short in LATENCY_NAMES.items():
        latency = rates.latency[name] if rates is not None else Latency(0, None, None)
        parts += [
            (f"{short} ", "dim"),
            _seconds(latency.p50_s),
            (" p95 ", "dim"),
            f"{_seconds(latency.p95_s)}   ",
        ]
    return _line(*parts)


def _speculation(reading: Reading, rates: Rates | None) -> Iterable[Text]:
    now = reading["now"]
    yield _line(
        ("accepted ", "dim"),
        (_percent(_rate(rates, "acceptance")), "bold"),
        ("   length ", "dim"),
        _number(_rate(rates, "mean_acceptance_length"), 2),
        ("   tokens/step ", "dim"),
        _number(_rate(rates, "tokens_per_step"), 2),
        ("   speed-up ", "dim"),
        (_number(_rate(rates, "speed_up"), 2), "bold"),
        (" estimated", "dim"),
    )
    yield _line(
        ("price ", "dim"),
        _number(now["shadow_price"], 3),
        ("   depth ", "dim"),
        _count(now["depth"]),
        ("   guard ", "dim"),
        _guard(now["guard_ratio"]),
        ("   goodput ", "dim"),
        _number(now["measured_goodput"]),
        (" predicted ", "dim"),
        _number(now["predicted_goodput"]),
        (" at K=0 ", "dim"),
        _number(now["predicted_baseline"]),
    )
    trips = _guard_trips(rates)
    yield _line(*trips) if trips else Text()


def _guard_trips(rates: Rates | None) -> list[Any]:
    tripped = {why: n for why, n in rates.guard_trips.items() if n} if rates is not None else {}
    told = ", ".join(f"{_count(n)} x {GUARD_TRIPS.get(why, why)}" for why, n in tripped.items())
    return [(f"guard turned speculation off: {told}", "bold red")] if told else []


# -- acceptance beside K -----------------------------------------------------------------------


def _columns(rates: Rates | None, history: History, max_rows: int | None) -> Table:
    """Acceptance by position to the left, classes to the right; a heading row each."""
    left = _positions(rates)
    right = _classes(rates, history)
    rows = list(zip_longest(left, right, fillvalue=Text()))
    if max_rows is not None:
        rows = rows[: max(MIN_COLUMN_ROWS, max_rows)]
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, width=6 + BAR_CELLS + 5)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def _positions(rates: Rates | None) -> list[Text]:
    lines = [Text("accepted by position", HEADING)]
    shares = rates.acceptance_by_position if rates is not None else []
    for position, share in enumerate(shares, 1):
        drawn = bar(share) if share is not None else ""
        line = Text.assemble((f"{position:>3}  ", "dim"), (drawn.ljust(BAR_CELLS), "green"))
        lines.append(line.append(f" {_percent(share):>5}"))
    while len(lines) > 2 and shares and shares[len(lines) - 2] is None:
        lines.pop()  # positions that the window did not try
    return lines if shares else [*lines, Text("  nothing drafted", "dim")]


def _classes(rates: Rates | None, history: History) -> list[Text]:
    lines = [Text(f"{'class':<12} {'K':>4} {'acc.':>5} {'tok/s':>7}  K over time", HEADING)]
    if rates is None or not rates.classes:
        return [*lines, Text("no requests", "dim")]
    busiest = sorted(rates.classes.items(), key=lambda item: -item[1].generation_tokens_per_s)
    for name, each in busiest:
        line = Text(
            f"{_short(name, 12):<12} {_number(each.mean_k):>4} {_percent(each.acceptance):>5} "
            f"{_number(each.generation_tokens_per_s):>7}  "
        )
        points = list(history.mean_k.get(name, ()))[-SPARK_CELLS:]
        lines.append(line.append(sparkline(points), "cyan"))
    return lines


# -- the lists below ---------------------------------------------------------------------------


def _targets(reading: Reading) -> list[Text]:
    heading = f"{'target':<18} {'phase':<11} {'run':>4} {'wait':>4} {'KV':>5} {'price':>6} "
    lines = [Text(f"{heading}{'guard':>6} {'tok/s':>7}", HEADING)]
    for each in reading["targets"]:
        phase = each["phase"] or UNKNOWN
        line = Text(f"{_short(each['replica_id'], 18):<18} ")
        line.append(f"{phase:<11}", PHASE_STYLES.get(phase, ""))
        line.append(
            f" {_count(each['running']):>4} {_count(each['waiting']):>4} "
            f"{_percent(each['kv_usage']):>5} {_number(each['shadow_price'], 3):>6} "
        )
        line.append(_guard(each["guard_ratio"], 6))
        line.append(f" {_number(each['measured_goodput']):>7}")
        if phase == "guard_off" and each["guard_reason"]:
            line.append(f" {GUARD_TRIPS.get(each['guard_reason'], each['guard_reason'])}", "red")
        lines.append(line)
    return lines


def _drafters(reading: Reading) -> list[Text]:
    heading = f"{'drafter':<18} {'first acc.':>11} {'delivered':>9} {'network p50':>12} {'p95':>9}"
    lines = [Text(heading, HEADING)]
    for each in reading["drafters"]:
        line = Text(
            f"{_short(each['name'], 18):<18} {_percent(each['acceptance_first']):>11} "
            f"{_percent(each['delivered']):>9} {_seconds(each['network_p50_s']):>12} "
            f"{_seconds(each['network_p95_s']):>9}"
        )
        lines.append(line.append("  broken", "bold red") if each["broken"] else line)
    return lines


def _drafts(reading: Reading) -> list[Text]:
    heading = f"{'draft replica':<18} {'state':<11} {'sessions':>9} {'free blocks':>12} "
    lines = [Text(f"{heading}{'busy':>5} {'round trip':>11}", HEADING)]
    for each in reading["drafts"]:
        line = Text(f"{_short(each['replica_id'], 18):<18} ")
        line.append(f"{each['state']:<11}", "green" if each["state"] == "ready" else "yellow")
        line.append(
            f" {_count(each['num_sessions']):>9} {_count(each['free_blocks']):>12} "
            f"{_percent(each['busy_ratio']):>5} {_seconds(each['round_trip_s']):>11}"
        )
        lines.append(line)
    return lines


def _fitted(lists: Sequence[list[Text]], rows: int | None) -> Iterable[Text]:
    """Headings with their lines, in `rows` rows: every list has a line before one has two."""
    shown = [len(each) for each in lists]
    if rows is not None:
        shown = [0] * len(lists)
        for _ in range(rows):
            wanting = [i for i, each in enumerate(lists) if shown[i] < len(each)]
            if not wanting:
                break
            shown[min(wanting, key=lambda i: shown[i])] += 1
    for lines, num_shown in zip(lists, shown, strict=True):
        hidden = len(lines) - num_shown
        for line in lines[:num_shown]:
            line.no_wrap, line.overflow = True, "ellipsis"
        if hidden and num_shown:
            lines[0].append(f"   (+{hidden} more)", "dim")
        yield from lines[:num_shown]


# -- numbers as text ---------------------------------------------------------------------------


def sparkline(points: Sequence[float | None]) -> str:
    """One character for each point, from 0 to the largest; a space where there is none."""
    top = max((point for point in points if point is not None), default=0.0)
    return "".join(" " if point is None else SPARKS[_level(point, top)] for point in points)


def _level(point: float, top: float) -> int:
    return round((len(SPARKS) - 1) * max(0.0, point) / top) if top > 0 else 0


def bar(share: float) -> str:
    """A share between 0 and 1 of BAR_CELLS cells, to the eighth of a cell."""
    eighths = round(8 * BAR_CELLS * min(1.0, max(0.0, share)))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _line(*parts: Any) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _rate(rates: Rates | None, name: str) -> float | None:
    value: float | None = getattr(rates, name) if rates is not None else None
    return value


def _number(value: float | None, decimals: int = 1) -> str:
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def _guard(ratio: float | None, width: int = 0) -> Text:
    style = "red" if ratio is not None and ratio < 1 else ""
    return Text(_number(ratio, 2).rjust(width), style)


def _short(text: str, width: int) -> str:
    """The end of a replica's id tells it from others."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
