"""Which saved measurements hold for this engine: the same model, numbers, device and ranks.

Knows where profiles are kept and how an engine is identified; it measures nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from specdec.config import DraftConfig, EngineConfig, ModelConfig
from specdec.errors import ConfigError
from specdec.model.catalog import cache_root
from specdec.model.identity import device_name, dtype_name, model_identity
from specdec.model.loader import resolve_device
from specdec.speculation.controller.profile import (
    CostSeed,
    ModelProfile,
    ProfileKey,
    find_profile,
    matching,
    read_profiles,
)

logger = logging.getLogger(__name__)


def profile_folder() -> Path:
    """Where `specdec profile` keeps what it measured."""
    return cache_root() / "profiles"


def profile_key(config: ModelConfig, device: torch.device) -> ProfileKey:
    """Of a model that runs on `device` in this process: its executor has set the number of
    threads by now."""
    return ProfileKey(
        model=model_identity(config),
        dtype=dtype_name(config),
        quantization=config.quantization,
        device=device_name(device),
        tensor_parallel_size=config.tensor_parallel_size,
        num_threads=torch.get_num_threads() if device.type == "cpu" else 0,
    )


def saved_seed(
    config: EngineConfig, device: torch.device, draft: DraftConfig | None = None
) -> CostSeed:
    """What was measured before of this target on `device`, and of a draft in this process.

    Raises ConfigError where `config.speculation.profile` names a file that cannot be read. A
    damaged file in the cache folder is only told: nobody asked for it.
    """
    target = _saved(config.target, device, config.speculation.profile)
    drafts = {}
    if draft is not None:
        found = _saved(draft.draft, resolve_device(draft.draft.device), config.speculation.profile)
        if found is not None and found.drafts:
            drafts["draft"] = found.drafts
    if target is None:
        return CostSeed(drafts=drafts)
    return CostSeed(steps=target.steps, drafts=drafts, graph_sizes=target.graph_sizes)


def _saved(model: ModelConfig, device: torch.device, path: str | None) -> ModelProfile | None:
    key = profile_key(model, device)
    if path is not None:
        found = matching(read_profiles(Path(path)), key)
        if found is None:
            logger.warning("profile %s holds nothing for %s: it is measured anew", path, key)
        return found
    try:
        return find_profile(profile_folder(), key)
    except ConfigError as error:
        logger.warning("%s; it is measured anew", error.message)
        return None
