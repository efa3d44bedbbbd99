"""What the OpenAPI document says of request bodies: the models that the handlers parse them by.

The routes take the raw request, so that an error names its field as OpenAI's do. FastAPI therefore
knows of no body and is told here.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose handler parses this model."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema with what it refers to in place: a route cannot add to the document's own list.

    Our bodies do not contain themselves, so this ends.
    """
    if isinstance(node, list):
        return [_inlined(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}
