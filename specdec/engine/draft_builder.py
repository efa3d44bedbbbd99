"""From a configuration to a draft engine with its model loaded; takes seconds."""

from __future__ import annotations

import time

from specdec.config import DraftConfig
from specdec.engine.draft_engine import DraftEngine
from specdec.errors import ConfigError
from specdec.model.executor import Executor, build_executor
from specdec.model.tokenizer import (
    Tokenizer,
    load_eos_token_ids,
    load_tokenizer,
    tokenizer_hash,
    vocabulary,
)
from specdec.speculation.messages import PROTOCOL_VERSION, DraftInfo

DRAFTER_KIND = "draft_model"


def build_draft_engine(
    config: DraftConfig, executor: Executor | None = None
) -> tuple[DraftEngine, Tokenizer]:
    """The engine and its model's tokenizer. `executor` replaces the one that `config` describes.

    Raises ConfigError for a model that cannot be served."""
    tokenizer = load_tokenizer(config.draft)
    executor = executor or build_executor(
        config.draft, config.cache, config.scheduler, config.max_num_speculative_tokens
    )
    info = _draft_info(config, executor, tokenizer_hash(tokenizer))
    return DraftEngine(executor, config, info, load_eos_token_ids(config.draft)), tokenizer


def token_strings(tokenizer: Tokenizer) -> list[str]:
    """A tokenizer's tokens by id, as it writes them; "" for an id without a token."""
    tokens = vocabulary(tokenizer)
    strings = [""] * (tokens[-1][0] + 1 if tokens else 0)
    for token_id, token in tokens:
        strings[token_id] = token
    return strings


def _draft_info(config: DraftConfig, executor: Executor, digest: str) -> DraftInfo:
    wanted = config.scheduler.max_model_len
    if wanted is not None and wanted > executor.model_max_len:
        raise ConfigError(
            f"scheduler.max_model_len {wanted} exceeds the draft's {executor.model_max_len}",
            field="scheduler.max_model_len",
        )
    return DraftInfo(
        model=config.draft.model,
        tokenizer_hash=digest,
        vocab_size=executor.vocab_size,
        max_model_len=wanted or executor.model_max_len,
        drafter_kind=DRAFTER_KIND,
        protocol_version=PROTOCOL_VERSION,
        incarnation=time.time_ns(),  # rises with every start on a machine
        max_num_speculative_tokens=config.max_num_speculative_tokens,
    )
