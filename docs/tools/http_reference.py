"""The HTTP endpoints as Markdown, from the gateway's OpenAPI document. Starts no Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deployments.gateway import http_app

BOUNDS = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above"}


def http_lines() -> Iterator[str]:
    for path, operations in http_app.openapi()["paths"].items():
        for method, operation in operations.items():
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"### {method.upper()} {path}", "")
    yield operation.get("description", operation["summary"])
    body = operation.get("requestBody")
    if body is not None:
        yield from ("", "| field | type | default |", "|---|---|---|")
        yield from _rows(body["content"]["application/json"]["schema"])


def _rows(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_kind(field)} | {default} |"


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "none" if value is None else json.dumps(value)


def _kind(schema: dict[str, Any]) -> str:
    """A JSON schema in words. A null is what a default of `none` says, so it is left out."""
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"] if part.get("type") != "null")
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema['items'])}"
        case "object":
            return _object(schema)
        case str() as kind:
            bounds = (f", {word} {schema[key]:g}" for key, word in BOUNDS.items() if key in schema)
            return kind + "".join(bounds)
        case _:
            return "any"


def _object(schema: dict[str, Any]) -> str:
    if "properties" in schema:
        return "object with " + ", ".join(f"`{name}`" for name in schema["properties"])
    values = schema.get("additionalProperties")
    return f"object of {_kind(values)}" if isinstance(values, dict) else "object"
