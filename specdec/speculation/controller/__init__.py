"""How many draft tokens each sequence gets in each step.

The engine uses `Controller` (its interface is final) and builds a `GoodputController`.
"""

from specdec.speculation.controller.controller import GoodputController
from specdec.speculation.controller.interface import (
    BatchState,
    Controller,
    Seeded,
    SequenceResult,
    SequenceState,
    StepResult,
)
from specdec.speculation.controller.profile import CostSeed, DraftPoint, ProfilePoint

__all__ = [
    "BatchState",
    "Controller",
    "CostSeed",
    "DraftPoint",
    "GoodputController",
    "ProfilePoint",
    "Seeded",
    "SequenceResult",
    "SequenceState",
    "StepResult",
]
