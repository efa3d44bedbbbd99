"""Metrics, settings, files and reasons that the pages name exist."""

from __future__ import annotations

import re

import pytest

from specdec import config
from specdec.params import SpeculationParams
from tests.documents import PAGES, REPOSITORY, prose, text
from tests.exported_metrics import exported_labels

METRIC = re.compile(r"(?<![\w/])specdec_[a-z0-9_]+(?![\w*.]|\.\.\.)")
SECTIONS = {
    "cache": config.CacheConfig,
    "scheduler": config.SchedulerConfig,
    "speculation": config.SpeculationConfig,
}
# What requests and responses have under the same word.
SPECULATION_KEYS = {*SpeculationParams.__slots__, "explanations"}
# A field of log lines.
NOT_METRICS = {"specdec_request_id"}
FILE = re.compile(r"`((?:tests|specdec|deployments|benchmarks|docs)/[\w./-]+\.\w+)`")


def short(page):
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_metrics_are_exported(page):
    exported = set(exported_labels())
    families = exported | {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
    named = set(METRIC.findall(text(page)))
    assert {name for name in named - NOT_METRICS if not name.endswith("_")} <= families


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_settings_exist(page):
    for section, key in re.findall(r"`(cache|scheduler|speculation)\.(\w+)", prose(page)):
        known = set(SECTIONS[section].model_fields)
        assert key in known | (SPECULATION_KEYS if section == "speculation" else set()), key


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_files_exist(page):
    for name in FILE.findall(prose(page)):
        assert (REPOSITORY / name).exists(), name


def test_the_pages_name_some_of_each():
    everything = "".join(text(page) for page in PAGES)
    assert len(set(METRIC.findall(everything))) > 40
    assert len(set(FILE.findall(everything))) > 10


def test_names_that_do_not_exist_are_found():
    assert METRIC.findall(
        "`specdec_no_such_total` and `specdec_controller_*`, `specdec_top...`"
    ) == ["specdec_no_such_total"]
    assert "specdec_no_such_total" not in exported_labels()
