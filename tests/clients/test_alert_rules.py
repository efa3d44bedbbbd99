"""Prometheus' own promtool on our rules: every alert fires when it should and is quiet otherwise.

Series are as promtool writes them, one sample a minute: `0+60x30` starts at 0 and grows by 60 in
each of the 30 minutes that follow.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import K8S

RULES = K8S / "components" / "monitoring" / "rules.yaml"
LABELS = 'namespace="n", ray_io_cluster="c", model_name="m"'
DRAFTED = "specdec_draft_tokens_total"
ACCEPTED = "specdec_accepted_tokens_total"
DISABLED = 'specdec_speculation_disabled_total{reason="%s"}'
IN_TIME = 'specdec_time_to_first_token_seconds_bucket{le="1.0"}'
REQUESTS = "specdec_time_to_first_token_seconds_count"
KV_USAGE = "specdec_kv_cache_usage_ratio"
TIMEOUT_S = 60


@dataclass(frozen=True)
class Case:
    """What is scraped, and when the alert fires and when it does not."""

    alert: str
    what: str
    series: dict[str, str]
    firing: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()


def acceptance(later: int, drafted: int = 600) -> dict[str, str]:
    """70 % of what is drafted per minute for four hours, then `later` per minute."""
    before = drafted * 7 // 10
    last = before * 240
    return {
        DRAFTED: f"0+{drafted}x400",
        ACCEPTED: f"0+{before}x240 {last + later}+{later}x160",
    }


def first_tokens(in_time: int) -> dict[str, str]:
    """100 requests per minute, so many of them with a first token within a second."""
    return {REQUESTS: "0+100x90", IN_TIME: f"0+{in_time}x90"}


CASES = (
    # Half of 0.7 is under 0.6 of it: 0.35 < 0.42. The 15-minute ratio is there once 12 of its
    # minutes are new (0.7 - 0.35 x 12 / 15 = 0.42); 15 minutes later it fires.
    Case(
        "SpecdecAcceptanceCollapse",
        "acceptance halves",
        acceptance(later=210),
        firing=("4h31m", "5h"),
        quiet=("3h59m", "4h20m"),
    ),
    # 0.45 is above 0.42.
    Case(
        "SpecdecAcceptanceCollapse", "it falls by a third", acceptance(270), quiet=("4h31m", "6h")
    ),
    # Half a draft token per second is too little to tell.
    Case(
        "SpecdecAcceptanceCollapse",
        "it halves where little is drafted",
        acceptance(later=10, drafted=30),
        quiet=("4h31m", "6h"),
    ),
    # Gone from the 11th minute on, and five minutes after that.
    Case(
        "SpecdecDrafterLost",
        "the last draft leaves",
        {"specdec_draft_replicas": "1+0x10 0+0x30"},
        firing=("16m", "30m"),
        quiet=("10m", "15m"),
    ),
    Case(
        "SpecdecDrafterLost",
        "a draft is replaced within four minutes",
        {"specdec_draft_replicas": "1+0x10 0+0x3 1+0x30"},
        quiet=("14m", "16m", "30m"),
    ),
    # 12 per minute are 0.2 per second, 3 are 0.05; the bound is 0.1.
    Case(
        "SpecdecDrafterLost",
        "targets find none in reach",
        {"specdec_draft_replicas": "1+0x30", DISABLED % "draft_unavailable": "0+12x30"},
        firing=("20m",),
    ),
    Case(
        "SpecdecDrafterLost",
        "targets seldom find none in reach",
        {"specdec_draft_replicas": "1+0x30", DISABLED % "draft_unavailable": "0+3x30"},
        quiet=("20m",),
    ),
    Case(
        "SpecdecDrafterLost",
        "speculation is off for another reason",
        {"specdec_draft_replicas": "1+0x30", DISABLED % "off_by_request": "0+12x30"},
        quiet=("20m",),
    ),
    Case(
        "SpecdecSlowerThanBaseline",
        "steps take 5 % longer than without speculation",
        {"specdec_controller_guard_ratio": "0.95+0x30"},
        firing=("10m", "20m"),
        quiet=("9m",),
    ),
    Case(
        "SpecdecSlowerThanBaseline",
        "steps take 2 % longer",
        {"specdec_controller_guard_ratio": "0.98+0x30"},
        quiet=("20m",),
    ),
    # The third trip is in the 33rd minute, and ten minutes after that.
    Case(
        "SpecdecSlowerThanBaseline",
        "the guard trips three times in an hour",
        {"specdec_guard_trips_total": "0+0x10 1+0x10 2+0x10 3+0x60"},
        firing=("50m",),
        quiet=("32m", "42m"),
    ),
    Case(
        "SpecdecSlowerThanBaseline",
        "it trips twice",
        {"specdec_guard_trips_total": "0+0x10 1+0x10 2+0x60"},
        quiet=("50m", "70m"),
    ),
    Case(
        "SpecdecKvPressure",
        "memory is full and sequences are put back",
        {KV_USAGE: "0.97+0x30", "specdec_preemptions_total": "0+1x30"},
        firing=("12m", "30m"),
        quiet=("9m",),
    ),
    Case(
        "SpecdecKvPressure",
        "memory is full and requests wait",
        {KV_USAGE: "0.97+0x30", "specdec_requests_waiting": "2+0x30"},
        firing=("12m",),
    ),
    Case(
        "SpecdecKvPressure",
        "memory is full of cached prefixes, as it should be",
        {
            KV_USAGE: "0.97+0x30",
            "specdec_preemptions_total": "7+0x30",
            "specdec_requests_waiting": "0+0x30",
        },
        quiet=("12m", "30m"),
    ),
    Case(
        "SpecdecKvPressure",
        "there is memory left",
        {KV_USAGE: "0.9+0x30", "specdec_preemptions_total": "0+1x30"},
        quiet=("12m", "30m"),
    ),
    Case(
        "SpecdecModelNotFinite",
        "one request meets NaN",
        {"specdec_not_finite_total": "0+0x10 1+0x30"},
        firing=("12m",),
        quiet=("9m", "30m"),
    ),
    Case(
        "SpecdecModelNotFinite",
        "a request met NaN before the rule's time, and none since",
        {"specdec_not_finite_total": "3+0x40"},
        quiet=("1m", "12m", "30m"),
    ),
    # 20 % late burn the budget of 1 % at 20 times its rate: above 14.4. 10 % do not.
    Case(
        "SpecdecFirstTokenBudgetBurnsFast",
        "a fifth is late",
        first_tokens(80),
        firing=("5m", "60m"),
        quiet=("1m",),
    ),
    Case("SpecdecFirstTokenBudgetBurnsFast", "a tenth is late", first_tokens(90), quiet=("60m",)),
    # An hour of 20 % leaves 16.7 % in the window of an hour; the last five minutes are clean.
    Case(
        "SpecdecFirstTokenBudgetBurnsFast",
        "a fifth was late and it is over",
        {REQUESTS: "0+100x90", IN_TIME: "0+80x60 4900+100x30"},
        firing=("60m",),
        quiet=("70m",),
    ),
    # 10 % are 10 times the rate: above 6. 5 % are not.
    Case(
        "SpecdecFirstTokenBudgetBurnsSlowly",
        "a tenth is late",
        first_tokens(90),
        firing=("20m", "60m"),
        quiet=("10m",),
    ),
    Case(
        "SpecdecFirstTokenBudgetBurnsSlowly",
        "a twentieth is late",
        first_tokens(95),
        quiet=("60m",),
    ),
)


@pytest.fixture(scope="session")
def rules(tmp_path_factory) -> Path:
    """The rules as Prometheus reads them: the spec of the PrometheusRule."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text("utf-8"))["spec"]))
    return path


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **options,
    )


def labelled(name: str) -> str:
    """A series' name with the labels that every one has beside its own."""
    family, _, own = name.removesuffix("}").partition("{")
    return f"{family}{{{', '.join(filter(None, (LABELS, own)))}}}"


def unit_test(case: Case, rules: Path) -> dict[str, object]:
    """A test file of promtool's for one case."""
    expression = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    expected = {
        **{at: [{"labels": "{}", "value": 1}] for at in case.firing},
        **{at: [] for at in case.quiet},
    }
    return {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": labelled(name), "values": values}
                    for name, values in case.series.items()
                ],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": at, "exp_samples": samples}
                    for at, samples in expected.items()
                ],
            }
        ],
    }


def test_the_rules_are_wellformed(promtool, rules):
    checked = run(promtool, "check", "rules", rules)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "SUCCESS" in checked.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.what}")
def test_an_alert_fires_when_it_should(promtool, rules, tmp_path, case):
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(unit_test(case, rules)))
    tested = run(promtool, "test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(rules):
    groups = yaml.safe_load(rules.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert {case.alert for case in CASES if case.firing} == alerts
    assert {case.alert for case in CASES if not case.firing} == alerts


def test_a_summary_tells_the_number(promtool, rules, tmp_path):
    """Annotations are templates; promtool fills them."""
    case = next(case for case in CASES if case.alert == "SpecdecAcceptanceCollapse")
    written = unit_test(case, rules)
    groups = yaml.safe_load(rules.read_text())["groups"]
    (rule,) = [r for group in groups for r in group["rules"] if r.get("alert") == case.alert]
    labels = {"severity": "warning", "namespace": "n", "ray_io_cluster": "c", "model_name": "m"}
    summary = "Acceptance of draft tokens fell to 35%."
    alert = {"exp_labels": labels, "exp_annotations": {**rule["annotations"], "summary": summary}}
    written["tests"][0]["alert_rule_test"] = [
        {"eval_time": "5h", "alertname": case.alert, "exp_alerts": [alert]}
    ]
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(written))
    tested = run(promtool, "test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr
