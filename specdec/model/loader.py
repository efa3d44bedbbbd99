"""Loading: from a ModelConfig to a transformers model with our attention attached.

Anything that transformers can load as a causal language model is accepted, unless its state
cannot be rolled back after a rejected draft token: recurrent and linear-attention models and
encoder-decoders are refused here, by name, at start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec.config import ModelConfig
from specdec.errors import ConfigError
from specdec.model import catalog
from specdec.model.attention import ATTENTION_NAME

# Layer types whose only state is the keys and values of past tokens, attended causally. All
# others keep a running state, or attend through a mask that a paged kernel does not see.
PAGED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for the runner.

    vocab_size: the logits' width. max_len: the context. is_whole: not one rank's share of a
    tensor-parallel model, whose modules carry hooks and are left as they are. is_checked: the
    engine's path is compared with the model's own forward at start.
    """

    model: PreTrainedModel
    config: PreTrainedConfig
    vocab_size: int
    max_len: int
    dtype: torch.dtype
    device: torch.device
    quantization: str = "none"
    is_whole: bool = True
    is_checked: bool = True


def load_model(config: ModelConfig, *, tp_size: int = 1) -> LoadedModel:
    """Load weights onto this rank's device. Raises ConfigError naming what cannot be served.

    With `tp_size` > 1, torch.distributed is initialised and every rank calls this together.
    """
    device = resolve_device(config.device)
    hf_config = load_config(config)
    refuse_unsupported(hf_config)
    dtype = resolve_dtype(config.dtype, hf_config, device)
    if config.quantization == "int8":
        _check_int8(dtype, device, tp_size)
    placement: dict[str, Any] = {"tp_plan": "auto"} if tp_size > 1 else {}
    with _missing_package_as_refusal(hf_config.model_type):
        model = AutoModelForCausalLM.from_pretrained(
            catalog.resolve(config.model),
            revision=config.revision,
            dtype=dtype,
            trust_remote_code=config.trust_remote_code,
            **placement,
        )
    if tp_size == 1:
        model.to(device)  # type: ignore[arg-type]
    return prepare_model(
        model,
        dtype,
        device,
        config.quantization,
        is_whole=tp_size == 1,
        is_checked=config.self_check,
    )


def _check_int8(dtype: torch.dtype, device: torch.device, tp_size: int) -> None:
    if device.type != "cpu" or tp_size > 1:
        raise ConfigError("int8 runs on one CPU rank only", field="quantization")
    if dtype != torch.float32:
        raise ConfigError("int8 computes in float32: leave dtype at auto", field="dtype")


def prepare_model(
    model: PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str = "none",
    is_whole: bool = True,
    is_checked: bool = True,
) -> LoadedModel:
    """Check a model in memory and wrap it for the runner; the model is frozen and switched to
    our attention."""
    text = model.config.get_text_config(decoder=True)
    refuse_unsupported(model.config)
    if getattr(model, "_is_stateful", False):
        raise refusal(text.model_type, "it keeps recurrent state, which cannot be rolled back")
    model.set_attn_implementation(ATTENTION_NAME)
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # torch's grouped matmul knows no float64
    model.train(False).requires_grad_(False)
    return LoadedModel(
        model,
        text,
        vocab_size=int(text.vocab_size),
        max_len=max_context(text),
        dtype=dtype,
        device=device,
        quantization=quantization,
        is_whole=is_whole,
        is_checked=is_checked,
    )


def load_config(config: ModelConfig) -> PreTrainedConfig:
    """The model's own configuration. Raises ConfigError where it cannot be read."""
    path = catalog.resolve(config.model)
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(
            path, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load model {config.model!r}: {error}", field="model") from error
    return found


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Raise ConfigError for a model whose past is more than keys and values.

    Decided from what the configuration and the model class declare, not from a list of names.
    """
    text = config.get_text_config(decoder=True)
    name = config.model_type
    if config.is_encoder_decoder:
        raise refusal(name, "it is an encoder-decoder; only decoders are supported")
    missing = [size for size in ("vocab_size", "num_hidden_layers") if not hasattr(text, size)]
    if missing:
        raise refusal(
            name, f"its configuration has no {missing[0]}: it is no single stack of layers"
        )
    foreign = sorted(set(getattr(text, "layer_types", None) or ()) - PAGED_LAYER_TYPES)
    if foreign:
        raise refusal(name, f"it has {', '.join(foreign)} layers, which cannot be paged")
    model_class: Any = AutoModelForCausalLM._model_mapping.get(type(text), None)
    if getattr(model_class, "_is_stateful", False):
        raise refusal(name, "it keeps recurrent state, which cannot be rolled back")
    # What a class declares of its backends is no answer: some go through it and do not say so.
    if model_class is not None and not model_class._can_set_attn_implementation():
        raise refusal(name, "its attention does not go through transformers' AttentionInterface")


def refusal(name: str, why: str) -> ConfigError:
    """For a model type that cannot be served, naming it."""
    return ConfigError(f"model type {name!r} cannot be served: {why}", field="model")


@contextmanager
def _missing_package_as_refusal(name: str) -> Iterator[None]:
    """Some models need packages that are not ours to install."""
    try:
        yield
    except ImportError as error:
        raise refusal(name, f"a package is missing: {' '.join(str(error).split())}") from error


@contextmanager
def failure_as_refusal(loaded: LoadedModel) -> Iterator[None]:
    """A model that cannot be run, or holds a module that cannot be paged, is refused by name.
    Several ranks report the loss of one as RuntimeError, which is for others to see."""
    name = loaded.model.config.model_type
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except ConfigError as error:
        raise refusal(name, error.message) from error
    except Exception as error:
        if not loaded.is_whole:
            raise
        raise refusal(name, f"a forward fails: {type(error).__name__}: {error}") from error


def max_context(text: PreTrainedConfig) -> int:
    """The longest context whose logits do not depend on how long neighbours in the batch are.

    `longrope` and `dynamic` rotary embeddings change their frequencies for the whole batch, and
    for keys already cached, once a position passes the original length: we stop there.
    """
    limit = int(getattr(text, "max_position_embeddings", None) or 2**31)
    for rope in _rope_parameters(text):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


def _rope_parameters(text: PreTrainedConfig) -> list[dict[str, Any]]:
    """The rotary settings: one for all layers, or one per layer type."""
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def resolve_device(device: str) -> torch.device:
    """`auto` is CUDA where there is one. A rank uses the CUDA device that is current to it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device is cuda, but torch sees no CUDA device", field="device")
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device)


def resolve_dtype(dtype: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own dtype on CUDA and float32 on CPU."""
    if dtype != "auto":
        return getattr(torch, dtype)  # type: ignore[no-any-return]
    stored = config.get_text_config(decoder=True).dtype
    if device.type == "cpu" or stored is None:
        return torch.float32
    return stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
