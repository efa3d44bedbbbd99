"""docs/metrics.md lists every metric with its labels; no document names one that is not there."""

from __future__ import annotations

import re

import pytest

from deployments.metric_names import FAMILIES, VLLM_ALIASES
from tests.conftest import REPOSITORY
from tests.exported_metrics import exported_labels, selectors

REFERENCE = REPOSITORY / "docs" / "metrics.md"
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
# Names of the model's own keyword arguments and of Kubernetes labels are no metrics.
METRIC = re.compile(r"`((?:specdec_|vllm:spec_decode_)[a-z0-9_]+)(?:\{[^`]*\})?`")


def rows() -> dict[str, tuple[str, set[str]]]:
    """Name in the tables -> (kind, labels)."""
    found = re.findall(
        r"^\| `(specdec_\w+)` \| (\w+) \| ([^|]*)\|", REFERENCE.read_text("utf-8"), re.MULTILINE
    )
    assert len(found) == len({name for name, _, _ in found})
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in found}


def test_the_tables_have_every_family_with_its_kind_and_labels():
    expected = {}
    for name, family in FAMILIES.items():
        suffix = {"counter": "_total", "gauge": "", "histogram": "_bucket"}[family.kind]
        labels = set(exported_labels()[name + suffix]) - {"model_name", "le"}
        written = name + ("_total" if family.kind == "counter" else "")
        expected[written] = (family.kind, labels)
    assert rows() == expected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_metrics_that_exist(document):
    known = {*exported_labels(), *FAMILIES, *(f"{alias}_total" for alias in VLLM_ALIASES)}
    assert set(METRIC.findall(document.read_text("utf-8"))) <= known


def test_the_ratios_that_are_offered_parse_and_read_what_is_exported():
    expressions = re.findall(r"^\| [^|`]+ \| `([^`]+)` \|$", REFERENCE.read_text("utf-8"), re.M)
    assert len(expressions) == 4
    for expression in expressions:
        names = {selector.name for selector in selectors(expression)}
        assert names
        assert names <= set(exported_labels())
