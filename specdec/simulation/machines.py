"""Machines by name: published, fitted, stepped, computed from hardware numbers, or measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specdec.errors import ConfigError
from specdec.simulation.costs import Llama8B, StepCost, llama_8b_calibrated, llama_70b_tp4
from specdec.simulation.hardware import parse_machine, read_machine
from specdec.simulation.profiled import read_machine_profile
from specdec.simulation.stairs import llama_7b_stairs, llama_70b_tp4_stairs, llama_70b_tp8_stairs

DEFAULT_MACHINE = "llama-8b"
MACHINES: dict[str, Callable[[], StepCost]] = {
    DEFAULT_MACHINE: Llama8B,
    "llama-8b-calibrated": llama_8b_calibrated,
    "llama-70b-tp4": llama_70b_tp4,
    "llama-7b-stairs": llama_7b_stairs,
    "llama-70b-tp4-stairs": llama_70b_tp4_stairs,
    "llama-70b-tp8-stairs": llama_70b_tp8_stairs,
}
PROFILE = "profile:"


def make_machine(name: str, drafters: tuple[str, ...] = ()) -> StepCost:
    """A name of MACHINES, `profile:FILE`, a .json file of hardware numbers, or TARGET@GPUxN+DRAFT.

    Raises ConfigError (field `cost`, or the field of the file) for anything else, and where the
    machine tells nothing of one of `drafters`.
    """
    machine = _made(name)
    for drafter in drafters:
        if drafter not in machine.drafters:
            raise ConfigError(
                f"cost: {name} tells nothing of {drafter!r}; it knows "
                f"{', '.join(machine.drafters)}",
                field="cost",
            )
    return machine


def _made(name: str) -> StepCost:
    if name in MACHINES:
        return MACHINES[name]()
    if name.startswith(PROFILE):
        return read_machine_profile(Path(name.removeprefix(PROFILE)))
    if name.endswith(".json"):
        return read_machine(Path(name))
    if "@" in name:
        return parse_machine(name)
    raise ConfigError(
        f"cost: unknown machine {name!r}; allowed are {', '.join(MACHINES)}, profile:FILE, "
        "FILE.json, and TARGET@GPUxN+DRAFT",
        field="cost",
    )
