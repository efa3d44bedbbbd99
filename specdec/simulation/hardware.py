"""GPUs and models by name, and machines written as `TARGET@GPUxN+DRAFT`.

Numbers of data sheets and model cards: dense bf16 operations, memory bandwidth, memory; parameters,
weights in bf16, KV bytes per token (2 * layers * KV heads * head size * 2 bytes).
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from specdec.errors import ConfigError
from specdec.input_files import check_regular
from specdec.params import shown
from specdec.simulation.roofline import Efficiency, Gpu, ModelSize, Placed, Roofline

GPUS = {
    "a100": Gpu(312e12, 2.039e12, 80e9),
    "h100": Gpu(989e12, 3.35e12, 80e9),
    "h200": Gpu(989e12, 4.8e12, 141e9),
    "b200": Gpu(2250e12, 8.0e12, 180e9),
    "l40s": Gpu(362e12, 0.864e12, 48e9, all_reduce_s=60e-6),
}
MODELS = {
    "llama-3.2-1b": ModelSize(1.24e9, 2.48e9, 32_768, 16),
    "llama-3.2-3b": ModelSize(3.21e9, 6.42e9, 114_688, 28),
    "llama-3.1-8b": ModelSize(8.03e9, 16.06e9, 131_072, 32),
    "llama-3.1-70b": ModelSize(70.6e9, 141.2e9, 327_680, 80),
    "qwen3-0.6b": ModelSize(0.6e9, 1.2e9, 114_688, 28),
    "qwen3-8b": ModelSize(8.19e9, 16.4e9, 147_456, 36),
    "qwen3-32b": ModelSize(32.8e9, 65.6e9, 262_144, 64),
}
_MACHINE = re.compile(r"([^@+]+)@([^@+]+?)(?:x([0-9]{1,3}))?(?:\+([^@+]+?)(?:@([^@+]+))?)?")
# Of a machine file; a thousand times the largest of what is built.
MAX_NUMBER, MAX_RANKS = 1e20, 1024

Record = TypeVar("Record", Gpu, ModelSize, Efficiency)


def gpu(name: str) -> Gpu:
    """A GPU by name. Raises ConfigError (field `gpu`)."""
    if name not in GPUS:
        raise ConfigError(f"gpu: unknown {shown(name)}; known are {', '.join(GPUS)}", field="gpu")
    return GPUS[name]


def model(name: str) -> ModelSize:
    """A model by name. Raises ConfigError (field `model`)."""
    if name not in MODELS:
        raise ConfigError(
            f"model: unknown {shown(name)}; known are {', '.join(MODELS)}; a machine file takes "
            "the numbers of any other",
            field="model",
        )
    return MODELS[name]


def parse_machine(text: str) -> Roofline:
    """`TARGET@GPUxN` or `TARGET@GPUxN+DRAFT[@GPU]`; without a GPU of its own the draft runs on the
    target's, on all N of them. Raises ConfigError (field `cost`, `gpu` or `model`)."""
    match = _MACHINE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"cost: {shown(text)} is no machine; write TARGET@GPUxN+DRAFT[@GPU], such as "
            "llama-3.1-70b@h100x4+llama-3.2-1b, or name a .json file",
            field="cost",
        )
    target_name, gpu_name, count, draft_name, draft_gpu = match.groups()
    target = Placed(model(target_name), gpu(gpu_name), int(count or 1))
    drafts = {}
    if draft_name is not None:
        place = (gpu(draft_gpu), 1) if draft_gpu else (target.gpu, target.tensor_parallel_size)
        drafts["draft"] = Placed(model(draft_name), *place)
    return Roofline(target, drafts)


def read_machine(path: Path) -> Roofline:
    """A machine from a JSON file: `target` and, if any, `draft`, each with `model`, `gpu` (names
    or objects of numbers), `tensor_parallel_size` and `efficiency`.

    Raises ConfigError (field `cost`) naming file and field.
    """
    try:
        check_regular(path)
        content = json.loads(path.read_text("utf-8"))
        if not isinstance(content, dict) or not content.keys() <= {"target", "draft"}:
            raise ConfigError("machine: takes an object with target and draft", field="cost")
        target = _placed(content.get("target"), "target")
        draft = content.get("draft")
        return Roofline(target, {} if draft is None else {"draft": _placed(draft, "draft")})
    except ConfigError as error:
        raise ConfigError(f"cost: {path}: {error.message}", field="cost") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cost: cannot read {path}: {error}", field="cost") from None


def _placed(content: Any, where: str) -> Placed:
    known = {"model", "gpu", "tensor_parallel_size", "efficiency"}
    if not isinstance(content, dict) or not {"model", "gpu"} <= content.keys() <= known:
        raise ConfigError(
            f"{where}: takes an object with model and gpu, and if need be tensor_parallel_size "
            "and efficiency"
        )
    size = content.get("tensor_parallel_size", 1)
    if type(size) is not int or not 1 <= size <= MAX_RANKS:
        raise ConfigError(f"{where}.tensor_parallel_size: must be a whole number, 1 to {MAX_RANKS}")
    of_model, of_gpu = content["model"], content["gpu"]
    return Placed(
        model(of_model) if isinstance(of_model, str) else _record(ModelSize, of_model, where),
        gpu(of_gpu) if isinstance(of_gpu, str) else _record(Gpu, of_gpu, where),
        size,
        _record(Efficiency, content.get("efficiency", {}), where),
    )


def _record(kind: type[Record], content: Any, where: str) -> Record:
    names = [member.name for member in fields(kind)]
    is_good = isinstance(content, dict) and all(
        name in names and type(value) in (int, float) and abs(value) <= MAX_NUMBER
        for name, value in content.items()
    )
    if not is_good:
        raise ConfigError(
            f"{where}: expected an object of numbers up to {MAX_NUMBER:g}: {', '.join(names)}"
        )
    try:
        return kind(**content)
    except TypeError:
        raise ConfigError(f"{where}: needs all numbers of {', '.join(names)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.message}") from None
