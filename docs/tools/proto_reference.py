"""The gRPC services and messages as Markdown, from the protos and the comments in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

PROTOS = Path(__file__).resolve().parents[2] / "protos"
PACKAGE = ".specdec.v1."
# What a caller of the public API reads comes first.
ORDER = ("inference", "sampling", "draft", "verify")
# Field numbers of descriptor.proto, which source locations are made of.
IN_FILE = {"package": 2, "message": 4, "enum": 5, "service": 6}
IN_MESSAGE, IN_ENUM, IN_SERVICE = 2, 2, 2


def proto_lines() -> Iterator[str]:
    for file in _files():
        yield from ("", f"## {file.name}", "")
        yield from ProtoFile(file).lines()


def _files() -> list[FileDescriptorProto]:
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "build", str(PROTOS), "--as-file-descriptor-set", "--output", "-"]
    described = subprocess.run(command, capture_output=True, check=True).stdout
    files = {Path(f.name).stem: f for f in FileDescriptorSet.FromString(described).file}
    return [files[name] for name in ORDER]


class ProtoFile:
    """One schema, written down."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file

    @cached_property
    def _comments(self) -> dict[tuple[int, ...], str]:
        """What stands above each declaration, by its path in the file."""
        return {
            tuple(location.path): " ".join(location.leading_comments.split())
            for location in self._file.source_code_info.location
        }

    def lines(self) -> Iterator[str]:
        """The file's purpose, its services, messages and enums."""
        yield self._comments.get((IN_FILE["package"],), "")
        for index, service in enumerate(self._file.service):
            yield from self._service((IN_FILE["service"], index), service)
        for index, message in enumerate(self._file.message_type):
            yield from self._message((IN_FILE["message"], index), message)
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum((IN_FILE["enum"], index), enum)

    def _service(self, path: tuple[int, ...], service: ServiceDescriptorProto) -> Iterator[str]:
        yield from self._heading(service.name, path)
        yield from ("| call | request | response | |", "|---|---|---|---|")
        for index, method in enumerate(service.method):
            meaning = self._comment((*path, IN_SERVICE, index))
            yield f"| `{method.name}` | {_request(method)} | {_response(method)} | {meaning} |"

    def _message(self, path: tuple[int, ...], message: DescriptorProto) -> Iterator[str]:
        yield from self._heading(message.name, path)
        if message.field:
            yield from ("| field | type | number | meaning |", "|---|---|---|---|")
        for index, field in enumerate(message.field):
            kind = _kind(field, message)
            meaning = self._comment((*path, IN_MESSAGE, index))
            yield f"| `{field.name}` | {kind} | {field.number} | {meaning} |"

    def _enum(self, path: tuple[int, ...], enum: EnumDescriptorProto) -> Iterator[str]:
        yield from self._heading(enum.name, path)
        yield from ("| value | number | meaning |", "|---|---|---|")
        for index, value in enumerate(enum.value):
            meaning = self._comment((*path, IN_ENUM, index))
            yield f"| `{value.name}` | {value.number} | {meaning} |"

    def _heading(self, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield from ("", f"### {name}", "", self._comment(path), "")

    def _comment(self, path: tuple[int, ...]) -> str:
        return self._comments[path].replace("|", "\\|")


def _request(method: MethodDescriptorProto) -> str:
    return ("stream of " if method.client_streaming else "") + _link(method.input_type)


def _response(method: MethodDescriptorProto) -> str:
    return ("stream of " if method.server_streaming else "") + _link(method.output_type)


def _kind(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """The field's type in words; a map shows as what it maps."""
    nested = next((n for n in message.nested_type if field.type_name.endswith(f".{n.name}")), None)
    if nested is not None and nested.options.map_entry:
        key, value = nested.field
        return f"map of {_plain(key)} to {_plain(value)}"
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    choice = field.HasField("oneof_index") and not field.proto3_optional
    one_of = f", one of `{message.oneof_decl[field.oneof_index].name}`" if choice else ""
    return (
        ("list of " if repeated else "optional " * field.proto3_optional) + _plain(field) + one_of
    )


def _plain(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _link(type_name: str) -> str:
    """Our own types by link, others by name."""
    name = type_name.rsplit(".", 1)[-1]
    return f"[{name}](#{name.lower()})" if type_name.startswith(PACKAGE) else f"`{type_name[1:]}`"
