"""Monitors scrape ports that exist, once; rules parse, and ask for names that the fleet exports."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.exported_metrics import exported_labels, selectors
from tests.kubernetes import GPU_OVERLAYS, K8S, Manifest, of_kind, only, rendered, templates

RULES = K8S / "components" / "monitoring" / "rules.yaml"
GUIDE = REPOSITORY / "docs" / "runbooks.md"
ADDED_BY_PROMETHEUS = {"namespace", "ray_io_cluster", "pod"}


def rules() -> list[Manifest]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Manifest]:
    return [rule for rule in rules() if "alert" in rule]


def exported() -> dict[str, set[str]]:
    """Sample name to label names, of a scrape of one target that has done a bit of everything."""
    return {name: set(labels) for name, labels in exported_labels().items()}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_a_rule_asks_for_what_is_exported_or_recorded(name, expression):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    found = selectors(expression)
    assert found
    for selector in found:
        assert selector.name in recorded | set(exported())
        if selector.name in exported():
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= exported()[selector.name] | ADDED_BY_PROMETHEUS


def test_the_check_sees_selectors_inside_functions_and_both_sides_of_a_ratio():
    found = selectors(
        'sum(rate(a_total{x="1"}[5m])) / b > 1 and max_over_time(c[1h] offset 1h) > 0'
    )
    assert {selector.name for selector in found} == {"a_total", "b", "c"}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_where_to_read_on(rule):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "description", "runbook"} == set(rule["annotations"])
    assert re.fullmatch(r"\d+m", rule["for"])
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert REPOSITORY / path == GUIDE
    headings = re.findall(r"^#+ (.*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w-]", "", h.lower().replace(" ", "-")) for h in headings}


def test_every_alert_that_the_fleet_needs_is_there():
    assert {rule["alert"] for rule in alerts()} == {
        "SpecdecAcceptanceCollapse",
        "SpecdecDrafterLost",
        "SpecdecSlowerThanBaseline",
        "SpecdecKvPressure",
        "SpecdecModelNotFinite",
        "SpecdecFirstTokenBudgetBurnsFast",
        "SpecdecFirstTokenBudgetBurnsSlowly",
    }


def test_the_windows_of_a_recorded_ratio_are_those_in_its_name():
    recorded = [rule for rule in rules() if "record" in rule]
    for rule in recorded:
        window = re.search(r"(?:ratio|rate)(\d+[mh])$", rule["record"])[1]
        assert set(re.findall(r"\[(\w+)\]", rule["expr"])) == {window}


@pytest.mark.parametrize(
    ("alert", "share_of_budget", "over_h"),
    [
        ("SpecdecFirstTokenBudgetBurnsFast", 0.02, 1),
        ("SpecdecFirstTokenBudgetBurnsSlowly", 0.05, 6),
    ],
)
def test_a_burn_rate_spends_the_share_that_it_claims(alert, share_of_budget, over_h):
    """Burn rate x objective's slack is the ratio that spends this share of 30 days in so long."""
    (rule,) = [rule for rule in alerts() if rule["alert"] == alert]
    factors = [float(rate) for rate in re.findall(r"> ([\d.]+) \* 0\.01", rule["expr"])]
    assert factors == pytest.approx([share_of_budget * 30 * 24 / over_h] * 2)


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_monitors_scrape_ports_that_the_pods_name(overlay):
    for monitor in of_kind(rendered(overlay), "PodMonitor"):
        chosen = chosen_by(monitor["spec"]["selector"], overlay)
        assert chosen
        for role in chosen:
            ports = templates(overlay)[role]["spec"]["containers"][0]["ports"]
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                assert endpoint["port"] in {port["name"] for port in ports}


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_each_exporter_is_scraped_once_and_the_fleet_by_one_pod(overlay):
    scraped = [
        (role, endpoint["port"], endpoint.get("path"))
        for monitor in of_kind(rendered(overlay), "PodMonitor")
        for role in chosen_by(monitor["spec"]["selector"], overlay)
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    ]
    assert len(scraped) == len(set(scraped))
    assert {role for role, port, _ in scraped if port == "metrics"} == {"head", "target", "draft"}
    # There is one head; of workers there may be many, each with the sums of the whole fleet.
    assert [item for item in scraped if item[1] == "serve"] == [("head", "serve", "/metrics")]


def chosen_by(selector: Manifest, overlay: str) -> list[str]:
    def is_chosen(labels: dict[str, str]) -> bool:
        if not selector["matchLabels"].items() <= labels.items():
            return False
        terms = selector.get("matchExpressions", [])
        assert all(term["operator"] == "In" for term in terms)
        return all(labels.get(term["key"]) in term["values"] for term in terms)

    found = templates(overlay).items()
    return [role for role, template in found if is_chosen(template["metadata"]["labels"])]


def test_prometheus_finds_rules_and_monitors_by_one_label():
    objects = [*of_kind(rendered("h100-8b"), "PodMonitor")]
    objects.append(only(rendered("h100-8b"), "PrometheusRule"))
    assert {m["metadata"]["labels"]["release"] for m in objects} == {"prometheus"}
