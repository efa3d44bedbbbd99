"""Dashboards ask for what is exported, are applied, and lie on their grid without overlaps."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest
import yaml

from deployments.metric_names import FAMILIES
from k8s.dashboards.boards import BOARDS
from k8s.dashboards.panels import COLUMNS, FOLDER, as_json
from tests.exported_metrics import exported_labels, selectors
from tests.kubernetes import GPU_OVERLAYS, K8S, only, rendered

ADDED_BY_PROMETHEUS = {"namespace", "ray_io_cluster"}
RULES = K8S / "components" / "monitoring" / "rules.yaml"


def recorded() -> set[str]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["spec"]["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def saved(board) -> dict:
    return json.loads((FOLDER / f"{board.name}.json").read_text("utf-8"))


def panels(board) -> list[dict]:
    return [panel for panel in saved(board)["panels"] if panel["type"] != "row"]


def targets() -> list:
    return [
        pytest.param(target, id=f"{board.name}-{panel['title']}-{target['refId']}")
        for board in BOARDS
        for panel in panels(board)
        for target in panel["targets"]
    ]


def as_promql(expression: str) -> str:
    """Grafana fills in the range before Prometheus sees it."""
    return expression.replace("$__rate_interval", "5m")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_what_is_applied_is_what_the_code_says(board):
    written = (FOLDER / f"{board.name}.json").read_text("utf-8")
    assert written == as_json(board), "run python -m k8s.dashboards"


@pytest.mark.parametrize("target", targets())
def test_a_panel_asks_for_what_is_exported_or_recorded(target):
    found = selectors(as_promql(target["expr"]))
    assert found
    for selector in found:
        assert selector.name in recorded() | set(exported_labels())
        if selector.name in exported_labels():
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= exported_labels()[selector.name] | ADDED_BY_PROMETHEUS
            assert {"model_name", "namespace", "ray_io_cluster"} <= asked


@pytest.mark.parametrize("target", targets())
def test_counters_are_shown_as_rates_and_labels_exist(target):
    expression = as_promql(target["expr"])
    for name, after in re.findall(r"(specdec_\w+)\{[^}]*\}(\[?)", expression):
        grows = name.endswith(("_total", "_bucket"))
        assert bool(after) == grows, name
    grouped = {
        label.strip()
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        for label in labels.split(",")
        if label.strip()
    }
    read = set().union(*(exported_labels().get(s.name, set()) for s in selectors(expression)))
    assert grouped <= read
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped - {"le"}


def test_every_family_has_a_panel():
    shown = {
        re.sub(r"_(total|bucket)$", "", selector.name)
        for board in BOARDS
        for panel in panels(board)
        for target in panel["targets"]
        for selector in selectors(as_promql(target["expr"]))
    }
    assert set(FAMILIES) <= shown


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_lies_on_its_grid(board):
    every = saved(board)["panels"]
    assert [panel["id"] for panel in every] == list(range(1, len(every) + 1))
    cells = [panel["gridPos"] for panel in every]
    assert all(cell["x"] >= 0 and cell["x"] + cell["w"] <= COLUMNS for cell in cells)
    for one, other in combinations(cells, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_panel_says_what_it_shows(board):
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))
    assert all(panel["description"].endswith(".") for panel in panels(board))


def test_a_variable_finds_its_values_in_what_is_exported():
    (board, *_) = BOARDS
    for variable in saved(board)["templating"]["list"][1:]:
        metric = re.match(r"label_values\((\w+)", variable["query"]["query"])[1]
        assert metric in exported_labels()


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_grafana_finds_every_board(overlay):
    found = only(rendered(overlay), "ConfigMap", "specdec-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {json.loads(text)["uid"] for text in found["data"].values()} == {
        f"specdec-{board.name}" for board in BOARDS
    }
    assert sum(map(len, found["data"].values())) < 2**20  # what a ConfigMap may hold


def test_runbooks_name_panels_and_boards_that_exist():
    text = (K8S.parent / "docs" / "runbooks.md").read_text("utf-8")
    assert set(re.findall(r"(?<!\*)\*(\w+)\*(?!\*)", text)) <= {b.name for b in BOARDS} | {
        "Fast",
        "Slowly",
    }
    titles = {panel["title"] for b in BOARDS for panel in saved(b)["panels"]}
    assert set(re.findall(r'"([A-Z][^"]+)"', text)) <= titles
