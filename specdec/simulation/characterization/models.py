"""Loading the models of a characterisation: a target, its draft, and the target cut short."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.config import CacheConfig, ModelConfig
from specdec.errors import ConfigError
from specdec.model.executor import Executor, LocalExecutor
from specdec.model.loader import load_model
from specdec.model.runner import ModelRunner
from specdec.model.tokenizer import first_difference, load_eos_token_ids, load_tokenizer
from specdec.model.truncation import keep_first_layers
from specdec.simulation.characterization.study import Models


def load_models(
    target: ModelConfig,
    draft: ModelConfig | None,
    draft_layers: Sequence[int],
    pool: CacheConfig,
    ngram: tuple[int, int] | None,
) -> Models:
    """The target, and a drafter for `draft`, for the target's first n layers for each n of
    `draft_layers`, and for prompt lookup. Raises ConfigError where they do not fit together."""
    if draft is None and not draft_layers and ngram is None:
        raise ConfigError("no drafter: name a draft, draft layers or ngram", field="draft")
    if draft is not None:
        difference = first_difference(load_tokenizer(target), load_tokenizer(draft))
        if difference:
            raise ConfigError(f"the draft does not fit the target: {difference}", field="draft")
    drafts = {layers_name(n): load_executor(target, pool, n) for n in draft_layers}
    if draft is not None:
        drafts = {draft_name(draft): load_executor(draft, pool), **drafts}
    return Models(load_executor(target, pool), drafts, load_eos_token_ids(target), ngram)


def load_executor(
    config: ModelConfig, pool: CacheConfig, num_layers: int | None = None
) -> Executor:
    """One model over a pool of its own; of its first `num_layers` layers where that is given."""
    loaded = load_model(config)
    if num_layers is not None:
        loaded = keep_first_layers(loaded, num_layers)
    return LocalExecutor(ModelRunner(loaded, pool))


def draft_name(config: ModelConfig) -> str:
    """What tables call a draft model."""
    short = config.model.rstrip("/").rsplit("/", 1)[-1]
    return short if config.quantization == "none" else f"{short} {config.quantization}"


def layers_name(num_layers: int) -> str:
    """What tables call the target's first `num_layers` layers as a drafter."""
    return f"first {num_layers} layers"
