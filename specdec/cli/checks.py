"""The checks of `specdec doctor`: each looks at one thing and returns its verdict in numbers."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from packaging.requirements import Requirement

from specdec.errors import SpecdecError

if TYPE_CHECKING:
    from specdec.config import CacheConfig, ModelConfig
    from specdec.model.fit import ModelFit

GIB = 2**30
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY = GIB // 2
MIN_CACHE_DISK = 2 * GIB
# What a process takes beside weights and KV cache: the interpreter, torch, activations.
OVERHEAD_BYTES = GIB // 2


class Verdict(StrEnum):
    """How bad it is. Only `fail` stops a model from being served."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `hint` says what to do about it."""

    name: str
    verdict: Verdict
    detail: str
    hint: str = ""


def check_packages() -> Iterator[Check]:
    """Installed versions against what the package asks for, extra by extra.

    What only `serve` needs is a warning where it is missing: `generate` works without.
    """
    yield Check("python", Verdict.OK, sys.version.split()[0])
    for extra, severity in (("engine", Verdict.FAIL), ("serve", Verdict.WARN)):
        faults = list(_package_faults(extra))
        if faults:
            hint = f"pip install 'specdec[{extra}]'"
            yield Check(f"packages: {extra}", severity, "; ".join(faults), hint)
        else:
            yield Check(f"packages: {extra}", Verdict.OK, _versions(extra))


def _requirements(extra: str) -> Iterator[Requirement]:
    for text in metadata.requires("specdec") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        wanted = marker is None or marker.evaluate({"extra": extra})
        if wanted and requirement.name != "specdec":
            yield requirement


def _package_faults(extra: str) -> Iterator[str]:
    for requirement in _requirements(extra):
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is not {requirement.specifier}"


def _versions(extra: str) -> str:
    shown = {
        "engine": ("torch", "transformers", "tokenizers", "grpcio", "protobuf"),
        "serve": ("ray", "fastapi", "grpcio-health-checking"),
    }
    return ", ".join(f"{name} {metadata.version(name)}" for name in shown[extra])


def check_devices() -> Iterator[Check]:
    """Processors, and what runs attention on them."""
    import torch

    cores = len(os.sched_getaffinity(0))
    yield Check("cpu", Verdict.OK, f"{cores} cores, torch uses {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        yield Check("gpu", Verdict.OK, "none; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        free, total = torch.cuda.mem_get_info(index)
        detail = (
            f"{torch.cuda.get_device_name(index)}, SM {major}.{minor}, "
            f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
        )
        yield Check(f"gpu {index}", Verdict.OK, detail)
    yield _check_attention(torch.cuda.is_available())


def _check_attention(has_gpu: bool) -> Check:
    from specdec.model.attention import ATTENTION_NAME

    detail = f"{ATTENTION_NAME}: scaled_dot_product_attention over gathered blocks, any block size"
    if has_gpu:
        hint = "correct on a GPU, but no paged kernel is used there yet"
        return Check("attention", Verdict.WARN, detail, hint)
    return Check("attention", Verdict.OK, detail)


def check_memory() -> Check:
    """Memory that this process may still take."""
    available, total = available_memory(), psutil.virtual_memory().total
    detail = f"{available / GIB:.1f} GiB available of {total / GIB:.1f} GiB"
    verdict = Verdict.OK if available > 2 * GIB else Verdict.WARN
    return Check("memory", verdict, detail, "" if verdict is Verdict.OK else "close other programs")


def available_memory() -> int:
    """Bytes available to this process: the machine's, or what a container's limit leaves."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int(CGROUP_LIMIT.read_text(encoding="ascii"))
        used = int(CGROUP_LIMIT.with_name("memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return available
    return min(available, limit - used)


def check_cache_folder() -> Check:
    """Room for fetched models."""
    from specdec.model.catalog import cache_root

    folder = cache_root()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / GIB:.1f} GiB free"
    if not os.access(existing, os.W_OK):
        return Check("model cache", Verdict.WARN, f"{detail}, not writable", "set SPECDEC_CACHE")
    if free < MIN_CACHE_DISK:
        return Check("model cache", Verdict.WARN, detail, "free some disk, or set SPECDEC_CACHE")
    return Check("model cache", Verdict.OK, detail)


def check_shared_memory() -> Check:
    """Ray keeps its object store in shared memory."""
    if not SHARED_MEMORY.exists():
        return Check("shared memory", Verdict.WARN, f"no {SHARED_MEMORY}", "Ray will use the disk")
    total = shutil.disk_usage(SHARED_MEMORY).total
    detail = f"{total / GIB:.1f} GiB in {SHARED_MEMORY}"
    if total < MIN_SHARED_MEMORY:
        return Check(
            "shared memory", Verdict.WARN, detail, "start the container with --shm-size=1g"
        )
    return Check("shared memory", Verdict.OK, detail)


def check_port(name: str, port: int) -> Check:
    """Whether a server could listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            detail = f"{port}: {error.strerror or error}"
            return Check(f"{name} port", Verdict.FAIL, detail, f"free it, or use --{name}-port")
    return Check(f"{name} port", Verdict.OK, f"{port} is free")


def check_model(role: str, model: ModelConfig, cache: CacheConfig) -> tuple[Check, ModelFit | None]:
    """Whether a model can be found and served, and what it would take."""
    from specdec.model.fit import estimate_fit

    try:
        fit = estimate_fit(model, cache)
    except SpecdecError as error:
        return Check(role, Verdict.FAIL, error.message, _model_hint(model)), None
    kv = "sized by a profile run"
    if fit.num_kv_tokens is not None:
        kv = f"{fit.kv_cache_bytes / GIB:.2f} GiB for {fit.num_kv_tokens} tokens"
    detail = (
        f"{model.model}: {fit.model_type}, {fit.num_parameters / 1e6:.0f}M parameters, "
        f"{fit.weight_bytes / GIB:.2f} GiB of weights ({_numbers(model, fit)}), KV cache {kv} "
        f"({fit.kv_bytes_per_token / 1024:.1f} KiB per token), context {fit.max_model_len}"
    )
    return Check(role, Verdict.OK, detail), fit


def _numbers(model: ModelConfig, fit: ModelFit) -> str:
    return fit.dtype if model.quantization == "none" else f"{model.quantization} over {fit.dtype}"


def _model_hint(model: ModelConfig) -> str:
    from specdec.model.catalog import CATALOG

    if model.model in CATALOG:
        return f"specdec models fetch {model.model}"
    return "give a local folder, a hub id, or a name from: specdec models list"


def check_pair(target: ModelFit, draft: ModelFit) -> Check:
    """Whether a draft may propose for a target: shared ids, and a context that is long enough."""
    if draft.vocab_size < target.vocab_size:
        detail = f"{draft.vocab_size} tokens in the draft's vocabulary, {target.vocab_size} wanted"
        return Check("pair", Verdict.WARN, detail, "a draft must share the target's tokenizer")
    if draft.max_model_len < target.max_model_len:
        detail = (
            f"the draft's context is {draft.max_model_len}, the target's {target.max_model_len}"
        )
        return Check("pair", Verdict.WARN, detail, "longer texts go on without the draft")
    return Check("pair", Verdict.OK, "vocabulary and context fit")


def check_fit(fits: list[ModelFit]) -> Check:
    """Whether all models together fit into the memory of the device that they run on."""
    import torch

    needed = sum(fit.weight_bytes + fit.kv_cache_bytes + OVERHEAD_BYTES for fit in fits)
    on_gpu = any(fit.device == "cuda" for fit in fits)
    available = torch.cuda.mem_get_info()[0] if on_gpu else available_memory()
    detail = f"{needed / GIB:.1f} GiB needed, {available / GIB:.1f} GiB available"
    if needed > available:
        hint = "a smaller model, int8, a smaller KV cache, or more tensor-parallel ranks"
        return Check("fit", Verdict.FAIL, detail, hint)
    return Check("fit", Verdict.OK, detail)
