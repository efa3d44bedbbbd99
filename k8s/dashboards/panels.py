"""What a dashboard is made of, and how Grafana wants it written down.

Knows Grafana's JSON and PromQL's shapes; which panels there are stands in `boards.py`. Every
expression is held to one namespace, fleet and model by variables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "components" / "monitoring" / "dashboards"
SCHEMA_VERSION = 39
COLUMNS = 24
FILTER = 'namespace=~"$namespace",ray_io_cluster=~"$cluster",model_name=~"$model"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Grafana's names of units.
RATIO, SECONDS, PER_SECOND, PLAIN = "percentunit", "s", "ops", "short"
TOKENS_PER_SECOND = "suffix: tok/s"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """`text` says what it shows and what to make of it. `kind`: timeseries or stat."""

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = PLAIN
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    is_stacked: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    name: str
    text: str
    rows: Sequence[Row]


# -- expressions -------------------------------------------------------------------------------


def rate(metric: str, *by: str, where: str = "") -> str:
    """Of a counter, per second, over the fleet."""
    matchers = f"{FILTER},{where}" if where else FILTER
    return f"sum by ({', '.join(by)}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def gauge(metric: str, *by: str, how: str = "sum") -> str:
    return f"{how} by ({', '.join(by)}) ({metric}{{{FILTER}}})"


def ratio(above: str, below: str, *by: str) -> str:
    """Of two counters' rates."""
    return f"{rate(above, *by)} / {rate(below, *by)}"


def quantile(share: float, histogram: str, *by: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le', *by)})"


def quantiles(histogram: str, shares: Sequence[float] = (0.5, 0.95, 0.99)) -> list[Query]:
    return [Query(quantile(share, histogram), f"p{100 * share:g}") for share in shares]


def by_drafter(metric: str, how: str = "avg") -> list[Query]:
    return [Query(gauge(metric, "drafter", how=how), "{{drafter}}")]


ACCEPTANCE = ratio("specdec_accepted_tokens_total", "specdec_draft_tokens_total")
SPEED_UP = ratio("specdec_baseline_seconds_total", "specdec_speculating_seconds_total")


def stat(title: str, text: str, expr: str, unit: str = PLAIN) -> Panel:
    """One number, small."""
    return Panel(title, text, [Query(expr)], unit, kind="stat", width=4, height=4)


# -- Grafana's JSON ----------------------------------------------------------------------------


def as_json(board: Board) -> str:
    return json.dumps(dashboard(board), indent=1) + "\n"


def dashboard(board: Board) -> dict[str, Any]:
    return {
        "uid": f"specdec-{board.name}",
        "title": f"specdec / {board.name}",
        "description": board.text,
        "tags": ["specdec"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one crosshair over all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["specdec"], "asDropdown": True, "title": "specdec"}
        ],
        "templating": {"list": _variables()},
        "panels": _laid_out(board.rows),
    }


def _variables() -> list[dict[str, Any]]:
    up = "specdec_target_replicas"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        _variable("namespace", f"label_values({up}, namespace)"),
        _variable("cluster", f'label_values({up}{{namespace=~"$namespace"}}, ray_io_cluster)'),
        _variable("model", f'label_values({up}{{namespace=~"$namespace"}}, model_name)'),
    ]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Panels from left to right, a new line where the next does not fit."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        placed.append(_row(row.title, len(placed) + 1, y))
        x, y, line_height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            placed.append(_panel(panel, len(placed) + 1, x, y))
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    position = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.is_stacked else {}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": {"showPoints": "never", **custom}}
    if panel.unit == RATIO:
        defaults["min"] = 0
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
