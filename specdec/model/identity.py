"""What a measurement of a model on a device is filed under: names that change when it would.

Reads names, sizes and configuration, never weights.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch

from specdec.config import ModelConfig
from specdec.model import catalog
from specdec.model.loader import load_config, resolve_device, resolve_dtype

_CPU_INFO = Path("/proc/cpuinfo")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def model_identity(config: ModelConfig) -> str:
    """A name with the catalog's or the hub's revision, or, for a folder, with a digest of its
    configuration and the names and sizes of its weight files."""
    resolved = catalog.resolve(config.model)
    if config.model in catalog.CATALOG:
        return Path(resolved).name
    folder = Path(resolved)
    if folder.is_dir():
        return f"{folder.resolve().name}@{_folder_digest(folder)}"
    commit = getattr(load_config(config), "_commit_hash", None)
    return f"{config.model}@{commit or config.revision or 'main'}"


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:12]


def dtype_name(config: ModelConfig) -> str:
    """The numbers that the model is loaded in, `auto` resolved."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, load_config(config), device)
    return str(dtype).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    """The processor's own name."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return _cpu_name()


def _cpu_name() -> str:
    try:
        lines = _CPU_INFO.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
