"""Measured step times of a model on a machine, and the file that keeps them.

Knows the format and what identifies a measurement. It measures nothing and prices nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from specdec.errors import ConfigError
from specdec.input_files import check_regular
from specdec.params import shown

FORMAT = 1
# Beyond these a number is a slip of the pen, and its square is no number any more.
MAX_COUNT = 2**40
MIN_SECONDS, MAX_SECONDS = 1e-9, 86_400.0

Record = TypeVar("Record", "ProfileKey", "ProfilePoint", "DraftPoint")


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What must be equal for a measurement to hold.

    model: name and revision, or name and digest of the weights' layout. device: the processor's
    name. num_threads: CPU threads of each rank, 0 on a GPU.
    """

    model: str
    dtype: str
    quantization: str
    device: str
    tensor_parallel_size: int
    num_threads: int

    @property
    def file_name(self) -> str:
        """Readable, and different for different keys."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.model)}-{digest[:16]}.json"


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """A measured step of a target: tokens in the step, KV tokens read, seconds."""

    num_tokens: int
    num_kv_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """A measured round of a drafter: sequences, draft tokens for each of them, seconds."""

    num_sequences: int
    depth: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What one model was measured to take, as a target (`steps`) and as a draft (`drafts`).

    graph_sizes: numbers of tokens, ascending, to which the engine pads a step; none where it
        runs every number as it is.
    """

    key: ProfileKey
    steps: tuple[ProfilePoint, ...] = ()
    drafts: tuple[DraftPoint, ...] = ()
    graph_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CostSeed:
    """What a controller starts from: the target's steps, and the rounds of drafters by name."""

    steps: tuple[ProfilePoint, ...] = ()
    drafts: Mapping[str, tuple[DraftPoint, ...]] = field(default_factory=dict)
    graph_sizes: tuple[int, ...] = ()


def write_profiles(path: Path, profiles: Iterable[ModelProfile]) -> None:
    """Replace `path` as a whole: a reader sees the old file or the new one, never a part.

    Raises ConfigError where the folder cannot be written.
    """
    text = json.dumps({"format": FORMAT, "profiles": [asdict(p) for p in profiles]}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix=".profile-", delete=False) as file:
            file.write(text + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise ConfigError(f"cannot write the profile {path}: {error}", field="output") from error


def read_profiles(path: Path) -> tuple[ModelProfile, ...]:
    """Every profile of a file. Raises ConfigError, naming file and field, for anything else."""
    try:
        check_regular(path)
        content = json.loads(path.read_text("utf-8"))
        return _content(content)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the profile {path}: {error}", field="profile") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"profile {path}: not JSON: {error}", field="profile") from error
    except _BadField as fault:
        raise ConfigError(f"profile {path}: {fault}", field="profile") from None


def store_profile(folder: Path, profile: ModelProfile) -> Path:
    """Keep a profile in a folder under its key, with what an earlier one of the same key measured
    and this one did not: a model may be a target here and a draft there."""
    path = folder / profile.key.file_name
    if path.exists():
        profile = _joined(profile, _find(path, profile.key))
    write_profiles(path, [profile])
    return path


def find_profile(folder: Path, key: ProfileKey) -> ModelProfile | None:
    """The profile with exactly this key, or None. Raises ConfigError for a damaged file."""
    path = folder / key.file_name
    return _find(path, key) if path.exists() else None


def joined(profiles: Iterable[ModelProfile]) -> list[ModelProfile]:
    """One profile per key: of a model that is both target and draft, both parts."""
    by_key: dict[ProfileKey, ModelProfile] = {}
    for profile in profiles:
        by_key[profile.key] = _joined(profile, by_key.get(profile.key))
    return list(by_key.values())


def matching(profiles: Iterable[ModelProfile], key: ProfileKey) -> ModelProfile | None:
    """The one among `profiles` that was measured with exactly this key."""
    return next((profile for profile in profiles if profile.key == key), None)


def _find(path: Path, key: ProfileKey) -> ModelProfile | None:
    return matching(read_profiles(path), key)


def _joined(new: ModelProfile, old: ModelProfile | None) -> ModelProfile:
    if old is None:
        return new
    return replace(
        new,
        steps=new.steps or old.steps,
        graph_sizes=new.graph_sizes if new.steps else old.graph_sizes,
        drafts=new.drafts or old.drafts,
    )


# -- reading, field by field -----------------------------------------------------------------------


class _BadField(Exception):
    """Its text names the field and what is allowed there."""


def _content(content: Any) -> tuple[ModelProfile, ...]:
    _names(content, ("format", "profiles"), "")
    if content["format"] != FORMAT:
        raise _BadField(
            f"format: this version reads {FORMAT}, got {shown(content['format'])}; "
            "run specdec profile again"
        )
    profiles = _list(content["profiles"], "profiles")
    return tuple(_profile(entry, f"profiles[{i}].") for i, entry in enumerate(profiles))


def _profile(entry: Any, where: str) -> ModelProfile:
    _names(entry, [f.name for f in fields(ModelProfile)], where)
    return ModelProfile(
        key=_record(ProfileKey, entry["key"], f"{where}key."),
        steps=_records(ProfilePoint, entry["steps"], f"{where}steps"),
        drafts=_records(DraftPoint, entry["drafts"], f"{where}drafts"),
        graph_sizes=_sizes(entry["graph_sizes"], f"{where}graph_sizes"),
    )


def _records(kind: type[Record], value: Any, where: str) -> tuple[Record, ...]:
    return tuple(
        _record(kind, entry, f"{where}[{i}].") for i, entry in enumerate(_list(value, where))
    )


def _record(kind: type[Record], value: Any, where: str) -> Record:
    members = fields(kind)
    _names(value, [member.name for member in members], where)
    values: dict[str, Any] = {m.name: _value(m, value[m.name], where) for m in members}
    return kind(**values)


def _value(member: Field[Any], value: Any, where: str) -> str | int | float:
    name = where + member.name
    match member.type:
        case "str":
            if isinstance(value, str) and value:
                return value
            raise _BadField(f"{name}: must be a text, got {shown(value)}")
        case "int":
            if type(value) is int and 0 <= value <= MAX_COUNT:
                return value
            raise _BadField(f"{name}: must be a whole number, 0 to {MAX_COUNT}, got {shown(value)}")
        case _:
            if type(value) in (int, float) and MIN_SECONDS <= value <= MAX_SECONDS:
                return float(value)
            raise _BadField(
                f"{name}: must be a number of seconds, {MIN_SECONDS:g} to {MAX_SECONDS:g}, "
                f"got {shown(value)}"
            )


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    sizes = _list(value, where)
    known = all(type(size) is int and 0 < size <= MAX_COUNT for size in sizes)
    if not known or sizes != sorted(set(sizes)):
        raise _BadField(f"{where}: must be rising whole numbers above 0, got {shown(sizes)}")
    return tuple(sizes)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _BadField(f"{where}: must be a list, got {shown(value)}")
    return value


def _names(value: Any, names: SequenceOf[str], where: str) -> None:
    if not isinstance(value, dict):
        raise _BadField(f"{where.rstrip('.') or 'file'}: must be an object with {', '.join(names)}")
    for name in names:
        if name not in value:
            raise _BadField(f"{where}{name}: is missing")
    for name in value:
        if name not in names:
            raise _BadField(f"{where}{name}: unknown; known are {', '.join(names)}")
