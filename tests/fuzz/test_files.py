"""Files that nobody meant, to everything that reads one.

Each reader gives what the file holds, or an error of ours of a few lines that names the file or the
field: no other exception, which would be a traceback, and nothing without end.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.api_keys import load_api_keys
from deployments.launch import check_config
from deployments.settings import GatewaySettings
from specdec.cli.prompts import read_categories
from specdec.cli.serve import read_config
from specdec.errors import SpecdecError
from specdec.simulation.hardware import read_machine
from specdec.simulation.traces import load_traces
from specdec.speculation.controller.acceptance_log import read_log
from specdec.speculation.controller.profile import read_profiles
from tests.fuzz.rounds import fuzz
from tests.fuzz.values import anything, changed, text

MAX_ERROR_CHARS = 2000
MAX_DUMPED_CHARS = 20_000
# PyYAML reads some 100 kB in a second.
MAX_BYTES = 100_000

PROFILE_KEY = {
    "model": "m",
    "dtype": "float32",
    "quantization": "none",
    "device": "cpu",
    "tensor_parallel_size": 1,
    "num_threads": 1,
}
PROFILE = {
    "format": 1,
    "profiles": [
        {
            "key": PROFILE_KEY,
            "steps": [{"num_tokens": 1, "num_kv_tokens": 0, "seconds": 0.1}],
            "drafts": [],
            "graph_sizes": [1, 2],
        }
    ],
}
MACHINE = {
    "target": {"model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel_size": 1},
    "draft": {"model": "llama-3.2-1b", "gpu": "h100", "efficiency": {"weights": 0.5}},
}
PERIOD = {
    "format": 1,
    "start": "2026-11-29T13:00:00Z",
    "seconds": 3600,
    "drafter": "draft",
    "class": "default",
    "rounds": 10,
    "drafted": [10, 5],
    "trials": [10, 5],
    "successes": [6, 2],
    "tokens": 30,
    "target_seconds": 1.5,
}
TRACE = {"prompt_token_ids": [1, 2, 3], "generated_token_ids": [4, 5], "accept_len_ngram": [1, 2]}
KEYS = {"key": "sk-1", "tenant": "a", "operator": False}
PROMPT = {"prompt": "the cat", "category": "qa", "turns": ["one", "two"]}


def serve_config() -> dict[str, Any]:
    """The demo's."""
    return read_config(None)


def keys_of(path: Path) -> object:
    return load_api_keys(GatewaySettings(api_keys_file=str(path)))


def checked_config(path: Path) -> object:
    return check_config(read_config(path))


READERS: dict[str, tuple[Callable[[Path], object], Callable[[], Any], str]] = {
    "serve config": (checked_config, serve_config, "yaml"),
    "api keys": (keys_of, lambda: [KEYS], "yaml"),
    "profile": (read_profiles, lambda: PROFILE, "json"),
    "machine": (read_machine, lambda: MACHINE, "json"),
    "acceptance log": (read_log, lambda: [PERIOD] * 3, "jsonl"),
    "trace": (lambda path: load_traces([path], ("ngram",)), lambda: [TRACE] * 3, "jsonl.gz"),
    "prompts": (read_categories, lambda: [PROMPT] * 3, "jsonl"),
}


def spoilt_value(rng: random.Random, valid: Any) -> Any:
    if rng.random() < 0.05:
        return anything(rng)
    if isinstance(valid, list):
        rows = [dict(row) for row in valid]
        index = rng.randrange(len(rows))
        rows[index] = changed(rng, rows[index], sorted(rows[index]))
        return rows
    return deeply_changed(rng, valid)


def deeply_changed(rng: random.Random, value: Any) -> Any:
    """A change at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(sorted(value))
        return {**value, name: deeply_changed(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], deeply_changed(rng, value[index]), *value[index + 1 :]]
    return anything(rng, 2)


def as_file(value: Any, form: str) -> bytes:
    if form == "yaml" and len(json.dumps(value)) < MAX_DUMPED_CHARS:  # PyYAML writes slowly
        data = yaml.safe_dump(value).encode("utf-8", "surrogatepass")
    else:
        lines = value if form.startswith("jsonl") and isinstance(value, list) else [value]
        data = "\n".join(json.dumps(line) for line in lines).encode()
    return gzip.compress(data) if form.endswith(".gz") else data


def spoilt_file(rng: random.Random, value: Any, form: str) -> bytes:
    """The value as a file, in which bytes are at times lost, changed or added."""
    data = as_file(value, form)
    if form.endswith(".gz") and rng.random() < 0.9:
        return gzip.compress(spoilt(rng, gzip.decompress(data)))
    return spoilt(rng, data)


def spoilt(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(12)
    if kind == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif kind == 1:
        changing = bytearray(data or b" ")
        for _ in range(rng.randint(1, 8)):
            changing[rng.randrange(len(changing))] = rng.randrange(256)
        data = bytes(changing)
    elif kind == 2:
        data = rng.choice((b"", b"\xff\xfe", b"\0" * 9, b"[" * 50_000, b"&a [*a]", b"!!python/x"))
    elif kind == 3:
        data += b"\n" + text(rng).encode("utf-8", "surrogatepass")
    return data


def refusal(read: Callable[[Path], object], path: Path) -> SpecdecError | None:
    """What a reader says against the file; any other exception would be a traceback."""
    try:
        read(path)
    except SpecdecError as error:
        return error
    return None


@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_is_read_or_refused_in_a_line(name, tmp_path):
    read, valid, form = READERS[name]
    path = tmp_path / f"given.{form}"
    refused = 0
    path.write_bytes(as_file(valid(), form))
    read(path)

    def one_round(rng: random.Random) -> None:
        nonlocal refused
        path.write_bytes(spoilt_file(rng, spoilt_value(rng, valid()), form)[:MAX_BYTES])
        error = refusal(read, path)
        if error is not None:
            refused += 1
            assert 0 < len(error.message) < MAX_ERROR_CHARS, error.message[:300]
            assert error.field or str(path) in error.message

    fuzz(one_round, 80)
    assert refused, "nothing wrong was written"
