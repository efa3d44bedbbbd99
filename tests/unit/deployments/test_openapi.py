"""The OpenAPI document describes the bodies that the handlers accept."""

from __future__ import annotations

import pytest

from deployments.gateway import http_app
from deployments.openai_requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}


def operations():
    for path, methods in http_app.openapi()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


@pytest.mark.parametrize(("path", "model"), BODIES.items())
def test_a_body_has_every_field_that_is_parsed(path, model):
    described = http_app.openapi()["paths"][path]["post"]["requestBody"]["content"]
    schema = described["application/json"]["schema"]
    assert set(schema["properties"]) == set(model.model_fields)
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == required
    assert "$ref" not in str(schema)


def test_what_a_body_contains_is_described_in_place():
    body = http_app.openapi()["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    messages = body["content"]["application/json"]["schema"]["properties"]["messages"]
    assert set(messages["items"]["properties"]) == {"role", "content"}


def test_every_post_has_a_body():
    for path, method, operation in operations():
        assert ("requestBody" in operation) == (method == "post"), path
