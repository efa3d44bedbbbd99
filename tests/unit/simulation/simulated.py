"""Small requests and trace files for tests of the simulator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from specdec.simulation.requests import SimulatedRequest


def request(prompt_len: int, **acceptable: list[int]) -> SimulatedRequest:
    """One whose output is as long as the lists."""
    arrays = {name: np.array(values, dtype=np.int64) for name, values in acceptable.items()}
    return SimulatedRequest(prompt_len, len(next(iter(arrays.values()))), arrays)


def random_requests(count: int, seed: int, *drafters: str) -> list[SimulatedRequest]:
    """Of 5 to 40 tokens, whose acceptance has no rule."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(random.integers(5, 40))
        lists = {name: random.integers(0, 6, length).tolist() for name in drafters}
        made.append(request(int(random.integers(1, 50)), **lists))
    return made


def trace_line(num_prompt: int = 2, num_output: int = 3, **accept_len: list[int]) -> dict:
    """A line as a trace file has it."""
    line: dict = {
        "prompt_token_ids": list(range(num_prompt)),
        "generated_token_ids": list(range(num_output)),
    }
    return line | {f"accept_len_{name}": lengths for name, lengths in accept_len.items()}


def write_trace(path: Path, *lines: object) -> Path:
    """JSON lines; texts stand as they are."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path
