"""How a model calls its own modules: recorded in one forward, to be repeated on a replacement.

Knows nothing of what modules compute. A linear layer whose weight is read by code other than its
own `forward` is found here, too: such a layer cannot be kept in another layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_LAYER_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """The arguments of one call, tensors as they were then."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def scaled(self, factor: float) -> ModuleCall:
        """The same call with its hidden states, the first tensor of numbers, times a factor."""
        positional, named = list(self.positional), dict(self.named)
        for index, argument in enumerate(positional):
            if _is_numbers(argument):
                positional[index] = argument * factor
                return ModuleCall(tuple(positional), named)
        for name, argument in named.items():
            if _is_numbers(argument):
                named[name] = argument * factor
                break
        return ModuleCall(self.positional, named)


class ModuleCalls:
    """The first call of each module that was watched, and which linear layers are only called."""

    def __init__(self) -> None:
        self._calls: dict[int, ModuleCall] = {}
        self._called: set[str] = set()
        self._read: set[str] = set()
        self._roles: dict[int, str] = {}

    @classmethod
    def record(
        cls, model: nn.Module, watched: list[nn.Module], run: Callable[[], object]
    ) -> ModuleCalls:
        """Run the model once. `watched` are the modules whose arguments are kept."""
        calls = cls()
        linears = [(n, m) for n, m in model.named_modules() if type(m) is nn.Linear]
        hooks = [m.register_forward_pre_hook(calls._keep, with_kwargs=True) for m in watched]
        for name, linear in linears:
            role = calls._roles[id(linear)] = _LAYER_NUMBER.sub("#", name)
            linear.__class__ = _WatchedLinear
            linear.__dict__["_watch"] = (role, calls._called, calls._read)
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
            for _, linear in linears:
                linear.__class__ = nn.Linear
                del linear.__dict__["_watch"]
        return calls

    def of(self, module: nn.Module) -> ModuleCall | None:
        """How the module was called; None where it was not, or was not watched."""
        return self._calls.get(id(module))

    def is_only_called(self, linear: nn.Module) -> bool:
        """Whether layers of this role were called, and none had its weight read from outside.
        Layers of one role differ only in numbers in their names, as experts or blocks do."""
        role = self._roles.get(id(linear))
        return role in self._called and role not in self._read

    def _keep(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if id(module) not in self._calls:
            self._calls[id(module)] = ModuleCall(
                tuple(_copy(argument) for argument in positional),
                {name: _copy(argument) for name, argument in named.items()},
            )


class _WatchedLinear(nn.Linear):
    """A linear layer that notes who reads its weight. `_watch`: its role, and the sets of roles
    that were called and that were read from outside."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        role, called, _ = self.__dict__["_watch"]
        called.add(role)
        parameters = self.__dict__["_parameters"]
        return nn.functional.linear(rows, parameters["weight"], parameters["bias"])

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            role, _, read = self.__dict__["_watch"]
            read.add(role)
        return super().__getattr__(name)


def _copy(argument: Any) -> Any:
    # What follows the call may change its arguments in place.
    return argument.clone() if isinstance(argument, torch.Tensor) else argument


def _is_numbers(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()
