"""Acceptance traces: recorded requests with the accepted length of each drafter at every position.

One JSON object per line (`.jsonl`, also `.gz`): `prompt_token_ids`, `generated_token_ids` and for
each drafter `accept_len_<name>`, the tokens of a step that proposes there, the target's own token
included. Nothing of the simulation itself is here.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import ConfigError
from specdec.input_files import bounded_lines, check_regular
from specdec.simulation.requests import Ints, SimulatedRequest

PREFIX = "accept_len_"
MAX_ACCEPT_LEN = 1024


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Requests of one or several files, in the order of the lines.

    num_unaligned: lines left out because several drafters were asked for, and the recording of one
    is not as long as the text: its positions belong to another generation.
    """

    requests: tuple[SimulatedRequest, ...]
    num_unaligned: int


def load_traces(
    paths: SequenceOf[Path], drafters: tuple[str, ...], lookup_tokens: int | None = None
) -> TraceSet:
    """Read traces of these drafters.

    With one drafter a request is as long as that drafter's recording; with several, as its text.
    lookup_tokens: `ngram` has something to propose only where so many last tokens stand earlier in
        the text; None leaves open where.
    Raises ConfigError (field `trace`) for a missing file, a malformed line, named by its number,
    and for files that leave no request.
    """
    requests: list[SimulatedRequest] = []
    num_unaligned = 0
    for path in paths:
        for request in _read(path, drafters, lookup_tokens):
            if request is None:
                num_unaligned += 1
            else:
                requests.append(request)
    if not requests:
        names = ", ".join(str(path) for path in paths)
        raise ConfigError(
            f"trace: no request in {names or 'no file'}: all of {num_unaligned} lines have "
            "recordings of another length than their text"
            if num_unaligned
            else f"trace: no request in {names or 'no file'}",
            field="trace",
        )
    return TraceSet(tuple(requests), num_unaligned)


def _read(
    path: Path, drafters: tuple[str, ...], lookup_tokens: int | None
) -> list[SimulatedRequest | None]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        check_regular(path)
        with opener(path, "rt", encoding="utf-8") as file:
            lines = list(bounded_lines(file))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError(f"trace: cannot read {path}: {error}", field="trace") from None
    requests = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(_request(json.loads(line), drafters, lookup_tokens))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"trace: {path} line {number}: {error}", field="trace") from None
    return requests


def _request(
    record: Any, drafters: tuple[str, ...], lookup_tokens: int | None
) -> SimulatedRequest | None:
    """None for a request whose recordings are not aligned with its text, where that matters."""
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object")
    prompt, text = (_tokens(record, f"{kind}_token_ids") for kind in ("prompt", "generated"))
    recordings = {name: _lengths(record, PREFIX + name) for name in drafters}
    if len(drafters) > 1 and any(len(lengths) != len(text) for lengths in recordings.values()):
        return None
    output_len = min(len(lengths) for lengths in recordings.values())
    acceptable = {name: lengths - 1 for name, lengths in recordings.items()}
    offered = {}
    if lookup_tokens is not None and "ngram" in drafters:
        offered["ngram"] = _matches(prompt, text, output_len, lookup_tokens)
    return SimulatedRequest(len(prompt), output_len, acceptable, offered)


def _matches(prompt: list[int], text: list[int], output_len: int, num_tokens: int) -> Ints:
    """[output_len]: MAX_ACCEPT_LEN where the last `num_tokens` tokens stand earlier, too, else 0.
    Positions beyond the text have what the last one has."""
    seen: set[tuple[int, ...]] = set()
    known = prompt + text
    offered = np.zeros(output_len, dtype=np.int64)
    for end in range(num_tokens, len(known) + 1):
        last = tuple(known[end - num_tokens : end])
        if last in seen and end >= len(prompt):
            offered[end - len(prompt) : end - len(prompt) + 1] = MAX_ACCEPT_LEN
        seen.add(last)
    offered[len(text) :] = offered[min(len(text), output_len) - 1]
    return offered


def _tokens(record: dict[str, Any], field: str) -> list[int]:
    """The token ids that the field lists."""
    value = record.get(field)
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise ValueError(f"{field}: expected a list of token ids")
    if any(token < 0 for token in value):
        raise ValueError(f"{field}: a token id is not negative")
    return value


def _lengths(record: dict[str, Any], field: str) -> Ints:
    value = record.get(field)
    if not isinstance(value, list) or not value or any(type(length) is not int for length in value):
        raise ValueError(f"{field}: expected a list of accepted lengths, not empty")
    if any(not 1 <= length <= MAX_ACCEPT_LEN for length in value):
        raise ValueError(
            f"{field}: an accepted length counts the target's own token and is 1 to "
            f"{MAX_ACCEPT_LEN}"
        )
    return np.array(value, dtype=np.int64)
