"""Draws the layout of each Grafana dashboard from the JSON that is applied, for the pages.

python -m docs.tools.dashboard_pictures    # write docs/images/dashboards/*.svg

Grafana is not asked: a picture shows where panels lie, their titles, kinds, units and metrics, and
no data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from k8s.dashboards.boards import BOARDS
from k8s.dashboards.panels import COLUMNS, FOLDER

PICTURES = Path(__file__).resolve().parents[1] / "images" / "dashboards"
# Pixels of one cell of Grafana's grid, between panels, and around all.
CELL_WIDTH, CELL_HEIGHT, GAP, MARGIN = 44, 22, 6, 12
HEAD_HEIGHT, LINE_HEIGHT = 44, 12
# Characters of the small font that fit into one grid cell.
CHARS_PER_CELL = 7.0
METRIC = re.compile(r"specdec[_:][\w:]+")
LABEL = re.compile(r"\{\{(\w+)\}\}")
UNITS = {"percentunit": "per cent", "s": "seconds", "ops": "per second", "short": "plain number"}
STYLE = """
  text { font-family: sans-serif; fill: #24292f; }
  .board { font-size: 18px; font-weight: 600; }
  .row { font-size: 13px; font-weight: 600; }
  .title { font-size: 12px; font-weight: 600; }
  .kind { font-size: 10px; fill: #57606a; }
  .metric { font-size: 9px; font-family: monospace; fill: #0550ae; }
  .panel { fill: #ffffff; stroke: #d0d7de; }
  .band { fill: #eaeef2; }
  .page { fill: #f6f8fa; }
"""


def picture(board: dict[str, Any]) -> str:
    """An SVG of one dashboard's JSON."""
    bottom = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = bottom * CELL_HEIGHT + HEAD_HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<title>{escape(board['title'])}, layout</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        _text("board", MARGIN, MARGIN + 22, board["title"]),
        *(line for panel in board["panels"] for line in _drawn(panel)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(panel: dict[str, Any]) -> Iterator[str]:
    cells = panel["gridPos"]
    x = MARGIN + cells["x"] * CELL_WIDTH
    y = MARGIN + HEAD_HEIGHT + cells["y"] * CELL_HEIGHT
    width, height = cells["w"] * CELL_WIDTH - GAP, cells["h"] * CELL_HEIGHT - GAP
    style = "band" if panel["type"] == "row" else "panel"
    yield f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
    if panel["type"] == "row":
        yield _text("row", x + 8, y + 12, panel["title"])
        return
    num_lines = (height - 8) // LINE_HEIGHT
    for number, (kind, words) in enumerate(list(_lines(panel))[:num_lines], start=1):
        yield _text(kind, x + 8, y + 4 + number * LINE_HEIGHT, words)


def _lines(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(style, text) from the top: title, kind and unit, and the metrics that it asks for."""
    room = int(panel["gridPos"]["w"] * CHARS_PER_CELL)
    yield from (("title", line) for line in wrap(panel["title"], room))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    yield "kind", f"{panel['type']}, {UNITS.get(unit, unit.removeprefix('suffix:').strip())}"
    for metric in metrics(panel):
        parts = wrap(metric.replace("_", "_ "), room)
        yield from (("metric", part.replace("_ ", "_")) for part in parts)
    legends = [target["legendFormat"] for target in panel["targets"] if target["legendFormat"]]
    if legends:
        lines = LABEL.sub(r"by \1", f"lines: {', '.join(legends)}")
        yield from (("kind", line) for line in wrap(lines, room))


def metrics(panel: dict[str, Any]) -> list[str]:
    """The names that a panel's queries read, each once."""
    names = [name for target in panel["targets"] for name in METRIC.findall(target["expr"])]
    return list(dict.fromkeys(names))


def _text(style: str, x: int, y: int, words: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(words)}</text>'


def pictures() -> dict[Path, str]:
    """File to what it must hold."""
    saved = {name: FOLDER / f"{name}.json" for name in (board.name for board in BOARDS)}
    return {
        PICTURES / f"{name}.svg": picture(json.loads(path.read_text("utf-8")))
        for name, path in saved.items()
    }


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for file, text in pictures().items():
        file.write_text(text, "utf-8")
