"""Whether a model can be split over a number of tensor-parallel ranks, decided before loading it.

Knows what transformers' sharding needs of a configuration: whole heads on every rank, and a plan
that says which weights are split. Loads no weights and starts no process.
"""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedConfig

from specdec.errors import ConfigError

# What must divide by the number of ranks: attribute of the configuration, and its name for people.
_DIVISIBLE = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "num_global_key_value_heads": "key/value heads of its full-attention layers",
    "intermediate_size": "intermediate units",
    "moe_intermediate_size": "intermediate units of each expert",
}


def check_tensor_parallel(config: PreTrainedConfig, size: int, quantization: str = "none") -> None:
    """Raise ConfigError, naming the reason and the sizes that work, where the model of `config`
    cannot be split over `size` ranks."""
    if size == 1:
        return
    text = config.get_text_config()
    if quantization != "none":
        _refuse(size, f"{quantization} weights cannot be split; use quantization none")
    if not getattr(text, "base_model_tp_plan", None):
        _refuse(size, f"models of type {text.model_type} have no tensor-parallel plan; use 1")
    for attribute, label in _DIVISIBLE.items():
        for count in _counts(text, attribute):
            if count % size:
                _refuse(size, f"the model has {count} {label}; sizes that fit: {_fitting(text)}")


def _refuse(size: int, reason: str) -> None:
    raise ConfigError(f"tensor_parallel_size {size}: {reason}", field="tensor_parallel_size")


def _counts(config: PreTrainedConfig, attribute: str) -> Iterator[int]:
    """The values of an attribute that is absent, one number, or one number per layer."""
    value = getattr(config, attribute, None)
    if isinstance(value, int):
        yield value
    elif value is not None:
        yield from sorted(set(value))


def _fitting(config: PreTrainedConfig) -> str:
    """The sizes up to the number of attention heads that divide everything that must divide."""
    counts = [count for attribute in _DIVISIBLE for count in _counts(config, attribute)]
    sizes = range(1, config.num_attention_heads + 1)
    return ", ".join(str(size) for size in sizes if not any(count % size for count in counts))
