"""The demo's /metrics as Prometheus reads it: its Python parser, and the linter of promtool."""

from __future__ import annotations

import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.metric_names import VLLM_ALIASES

SUFFIXES = {
    "counter": {"_total", "_created"},
    "gauge": {""},
    "histogram": {"_bucket", "_sum", "_count", "_created"},
}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def scrape(service) -> str:
    """A scrape after a request that speculated."""
    asked = {"model": service.model, "prompt": "one two three one two three", "max_tokens": 24}
    speculation = {"speculation": {"mode": "fixed", "k": 4}, "ignore_eos": True}
    with httpx.Client(base_url=service.http_url, timeout=120, trust_env=False) as http:
        http.post("/v1/completions", json={**asked, **speculation}).raise_for_status()
        return http.get("/metrics").raise_for_status().text


def test_every_sample_belongs_to_a_family_with_a_type_and_a_text(scrape):
    families = list(text_string_to_metric_families(scrape))
    assert len(families) > 20
    for family in families:
        assert family.documentation, family.name
        assert family.type in SUFFIXES, family.name
        names = {family.name + suffix for suffix in SUFFIXES[family.type]}
        assert {sample.name for sample in family.samples} <= names


def test_no_series_is_told_twice(scrape):
    series = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
    ]
    assert len(series) == len(set(series))


def test_a_histograms_buckets_grow_to_its_count(scrape):
    histograms = [f for f in text_string_to_metric_families(scrape) if f.type == "histogram"]
    assert histograms
    for family in histograms:
        counts = {s.name: s.value for s in family.samples if "le" not in s.labels}
        by_labels: dict[tuple, list[tuple[float, float]]] = {}
        for sample in family.samples:
            if "le" in sample.labels:
                rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
                by_labels.setdefault(rest, []).append((float(sample.labels["le"]), sample.value))
        for buckets in by_labels.values():
            values = [value for _, value in sorted(buckets)]
            assert values == sorted(values), family.name
            assert max(buckets)[0] == float("inf")
        if len(by_labels) == 1:
            assert values[-1] == counts[f"{family.name}_count"]


def test_the_names_that_benchmarks_read_have_the_values_of_ours(scrape):
    families = {family.name: family for family in text_string_to_metric_families(scrape)}
    for alias, name in VLLM_ALIASES.items():
        ours, theirs = (
            {tuple(sorted(s.labels.items())): s.value for s in families[each].samples}
            for each in (name, alias)
        )
        assert theirs == ours
    assert sum(sample.value for sample in families["specdec_drafts"].samples) > 0


def test_a_scraper_that_prefers_openmetrics_is_told_what_it_gets(service):
    response = httpx.get(
        f"{service.http_url}/metrics",
        headers={"accept": f"{OPENMETRICS},text/plain;q=0.5"},
        timeout=60,
        trust_env=False,
    )
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "# EOF" not in response.text


def test_promtool_finds_nothing_but_the_names_of_others(promtool, scrape):
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = (checked.stdout + checked.stderr).splitlines()
    expected = {f"{alias}_total metric names should not contain ':'" for alias in VLLM_ALIASES}
    assert set(complaints) == expected
