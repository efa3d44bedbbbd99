"""A model cut to its first layers, with its own final norm and head behind them.

What an early exit computes, as a model of its own. It knows a decoder by its list of layers and
refuses, by name, any model whose layers do not form such a list.
"""

from __future__ import annotations

from torch import nn

from specdec.errors import ConfigError
from specdec.model.loader import LoadedModel


def keep_first_layers(loaded: LoadedModel, num_layers: int) -> LoadedModel:
    """Cut `loaded` in place to its first `num_layers` layers, and return it.

    Before a runner has taken the model. Raises ConfigError where the model has no more layers than
    that, and where later layers cannot be left out.
    """
    layers = _layers(loaded)
    if not 1 <= num_layers < len(layers):
        raise ConfigError(
            f"must be between 1 and {len(layers) - 1} of the {len(layers)} layers of "
            f"{type(loaded.model).__name__}, got {num_layers}",
            field="draft_layers",
        )
    del layers[num_layers:]
    loaded.config.num_hidden_layers = num_layers
    layer_types = getattr(loaded.config, "layer_types", None)
    if layer_types is not None:
        loaded.config.layer_types = layer_types[:num_layers]
    return loaded


def _layers(loaded: LoadedModel) -> nn.ModuleList:
    name = type(loaded.model).__name__
    layers = getattr(loaded.model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != loaded.config.num_hidden_layers:
        raise _refusal(name, "its decoder is not a plain list of layers")
    if getattr(loaded.config, "num_kv_shared_layers", 0):
        raise _refusal(name, "its layers share keys and values")
    if not loaded.is_whole:
        raise _refusal(name, "it is split over several ranks")
    return layers


def _refusal(name: str, why: str) -> ConfigError:
    return ConfigError(f"{name} cannot be cut to its first layers: {why}", field="draft_layers")
