"""docs/api.md is what the gateway and the protos say, and says all of it."""

from __future__ import annotations

import re

from deployments.gateway import http_app
from docs.tools.api_page import PAGE, page
from docs.tools.http_reference import _kind
from specdec.v1 import draft_pb2, inference_pb2, sampling_pb2, verify_pb2


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == page(), "run make api-page"


def test_every_path_is_there():
    headings = set(re.findall(r"^### ([A-Z]+ /.*)$", PAGE.read_text("utf-8"), re.MULTILINE))
    paths = http_app.openapi()["paths"]
    assert headings == {f"{m.upper()} {path}" for path, methods in paths.items() for m in methods}


def test_every_call_and_field_of_the_stubs_is_there():
    text = PAGE.read_text("utf-8")
    for module in (draft_pb2, inference_pb2, sampling_pb2, verify_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            assert f"### {service.name}\n" in text
            for method in service.methods:
                assert f"| `{method.name}` | " in text
        for message in module.DESCRIPTOR.message_types_by_name.values():
            section = text.split(f"### {message.name}\n")[1].split("\n### ")[0]
            for field in message.fields:
                assert re.search(
                    rf"^\| `{field.name}` \| .* \| {field.number} \| \S", section, re.M
                )


def test_types_in_words():
    ids = {"type": "array", "items": {"type": "integer"}}
    assert _kind({"anyOf": [{"type": "string"}, ids, {"type": "null"}]}) == (
        "string or list of integer"
    )
    assert _kind({"type": "integer", "minimum": 1}) == "integer, at least 1"
    assert _kind({"type": "object", "additionalProperties": {"type": "number"}}) == (
        "object of number"
    )
    assert _kind({}) == "any"
