"""docs/models.md says what the test over every type finds."""

from __future__ import annotations

import re

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.documents import REPOSITORY, text
from tests.model_types import NOT_BUILT, REFUSED, SERVED, Refusal

PAGE = text(REPOSITORY / "docs" / "models.md")


def counts(section: str) -> dict[str, int]:
    """The rows of a table whose second column is a number."""
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|$", section, re.MULTILINE)
    return {label: int(count) for label, count in rows}


def section(title: str) -> str:
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def listed(title: str) -> list[str]:
    """The names in the section's last paragraph, which holds nothing else."""
    paragraph = section(title).strip().split("\n\n")[-1]
    assert re.fullmatch(r"`[^`]+`(,\s`[^`]+`)*", paragraph), paragraph
    return re.findall(r"`([^`]+)`", paragraph)


def test_counts() -> None:
    refused = {refusal.title: len(refusal.names) for refusal in REFUSED}
    assert counts(section("Which models are served")) == {
        "served": len(SERVED),
        "refused": sum(refused.values()),
        "not built": len(NOT_BUILT),
    }
    assert counts(section("Refused")) == refused
    release = ".".join(transformers.__version__.split(".")[:2])
    offered = len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert f"transformers {release} offers {offered} types of causal language models" in PAGE


def test_served_types() -> None:
    assert listed("Served") == sorted(SERVED)


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: refusal.title)
def test_refused_types(refusal: Refusal) -> None:
    assert listed(refusal.title) == sorted(refusal.names)


def test_types_that_are_not_built() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S+) \|$", section("Not built"), re.MULTILINE)
    assert dict(rows) == NOT_BUILT
