"""From a configuration to a running engine: the only place in the package that joins its parts.

Loads models, so it takes seconds. Deployments call it with a remote draft, the command line and
embedders with an in-process one.
"""

from __future__ import annotations

from specdec.config import DraftConfig, EngineConfig, ModelConfig
from specdec.engine.engine import Engine
from specdec.engine.local_draft import build_local_draft
from specdec.engine.profiles import saved_seed
from specdec.engine.request import Limits
from specdec.engine.scheduler import Scheduler
from specdec.errors import ConfigError
from specdec.kvcache.block_manager import BlockManager
from specdec.model.executor import Executor, build_executor
from specdec.model.tokenizer import load_eos_token_ids, load_tokenizer
from specdec.speculation.controller import GoodputController
from specdec.speculation.controller.acceptance_monitor import AcceptanceMonitor
from specdec.speculation.proposer import Proposer
from specdec.speculation.proposers.ngram import NgramProposer


def build_engine(
    config: EngineConfig,
    draft: DraftConfig | None = None,
    draft_proposer: Proposer | None = None,
    executor: Executor | None = None,
) -> Engine:
    """An engine with the drafters that `config.speculation.drafters` names.

    The `draft` drafter is `draft_proposer` (a remote one), else a draft engine in this process
    made from `draft`. `executor` replaces the one that `config.target` describes. Raises
    ConfigError where the parts do not fit.
    """
    speculation = config.speculation
    if executor is None:
        executor = build_executor(
            config.target, config.cache, config.scheduler, speculation.max_num_speculative_tokens
        )
    max_model_len = context_limit(config, executor)
    blocks = BlockManager(
        executor.num_blocks, executor.block_size, config.cache.enable_prefix_caching
    )
    limits = Limits(
        executor.vocab_size,
        max_model_len,
        load_eos_token_ids(config.target),
        config.scheduler.max_logprobs_bytes,
    )
    tokenizer = load_tokenizer(config.target)
    proposers: dict[str, Proposer] = {}
    if "draft" in speculation.drafters:
        if draft_proposer is None and draft is None:
            raise ConfigError(
                "speculation.drafters names 'draft', but no draft model is configured",
                field="speculation.drafters",
            )
        proposers["draft"] = draft_proposer or build_local_draft(
            _required(draft), tokenizer, executor.vocab_size
        )
    if "ngram" in speculation.drafters:
        proposers["ngram"] = NgramProposer(speculation.ngram_min, speculation.ngram_max)
    controller = GoodputController(speculation)
    controller.seed(saved_seed(config, executor.device, _local(draft, draft_proposer)))
    return Engine(
        executor=executor,
        scheduler=Scheduler(config.scheduler, blocks, max_model_len),
        block_manager=blocks,
        config=speculation,
        limits=limits,
        proposers=proposers,
        controller=controller,
        tokenizer=tokenizer,
        acceptance=AcceptanceMonitor.open(speculation.acceptance_log),
    )


def context_limit(config: EngineConfig, executor: Executor) -> int:
    """The longest prompt + output. Raises ConfigError where more is asked than the model allows."""
    wanted = config.scheduler.max_model_len
    if wanted is not None and wanted > executor.model_max_len:
        raise ConfigError(
            f"scheduler.max_model_len {wanted} exceeds the model's {executor.model_max_len}",
            field="scheduler.max_model_len",
        )
    return wanted or executor.model_max_len


def _local(draft: DraftConfig | None, remote: Proposer | None) -> DraftConfig | None:
    """The draft of this process, if that is who drafts."""
    return draft if remote is None else None


def _required(draft: DraftConfig | None) -> DraftConfig:
    assert draft is not None
    return draft


def model_name(config: ModelConfig) -> str:
    """The name that clients see where the operator gave none."""
    return config.model.rstrip("/").rsplit("/", 1)[-1]
