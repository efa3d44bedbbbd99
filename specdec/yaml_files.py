"""YAML that people write: what it holds, or one line that says where it is wrong.

Beyond YAML's own grammar, a key that stands twice in one mapping is refused, since the first would
be lost silently, and what aliases blow up is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from specdec.errors import ConfigError
from specdec.input_files import check_regular

MAX_BYTES = 4 * 2**20
# With what aliases repeat.
MAX_VALUES = 200_000


def read_yaml(path: Path, field: str, *, quote: bool = True) -> Any:
    """The content of a file. Raises ConfigError for `field`, naming file and line; without `quote`
    it repeats nothing of what the file holds."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise OSError(f"it is larger than {MAX_BYTES} bytes")
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{field}: cannot read {path}: line {line} is no UTF-8 text", field=field
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{field}: cannot read {path}: {reason}", field=field) from None
    return parse_yaml(text, str(path), field, quote=quote)


def parse_yaml(text: str, place: str, field: str, *, quote: bool = True) -> Any:
    """As `read_yaml`, of text that comes from `place`."""
    try:
        value = yaml.load(text, _Loader)  # a SafeLoader, so plain data alone
        _check_size(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        what = f": {error.problem or error.context}" if quote else " is no valid YAML"
        raise ConfigError(f"{field}: {place}{where}{what}", field=field) from None
    except yaml.YAMLError as error:  # characters that no YAML may hold
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        raise ConfigError(
            f"{field}: {place}, line {line}: holds a character that is not allowed", field=field
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{field}: {place}: {reason}", field=field) from None


def line_of(text: str, keys: tuple[str, ...]) -> int | None:
    """The line, from 1, of what stands under these keys (a list's are its indices), or of the last
    one on the way that is there. None for text that is no YAML."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    line = None
    for key in keys:
        found = _child(node, key)
        if found is None:
            break
        start, node = found
        line = start.start_mark.line + 1
    return line


def _child(node: Any, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """(where it is named, what stands there)"""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                return name, value
    elif isinstance(node, yaml.SequenceNode) and key.isdecimal() and int(key) < len(node.value):
        return node.value[int(key)], node.value[int(key)]
    return None


class _Loader(yaml.SafeLoader):
    """Every fault has its line, and a key stands once in its mapping."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:  # a date that no calendar has
            raise yaml.constructor.ConstructorError(
                None, None, str(error), node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode) and name.tag != "tag:yaml.org,2002:merge":
                if (name.tag, name.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{name.value} stands there twice", name.start_mark
                    )
                seen.add((name.tag, name.value))
        return super().construct_mapping(node, deep=deep)


def _check_size(value: Any) -> None:
    left, stack = MAX_VALUES, [value]
    while stack:
        item = stack.pop()
        left -= 1
        if left < 0:
            raise ValueError(f"holds more than {MAX_VALUES} values")
        if isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list):
            stack += item
