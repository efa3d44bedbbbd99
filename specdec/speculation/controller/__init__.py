"""How many draft tokens each sequence gets in each step.

The engine uses `Controller` (its interface is final) and builds a `GoodputController`.
"""

from specdec.speculation.controller.controller import GoodputController
from specdec.speculation.controller.cost import ProfilePoint
from specdec.speculation.controller.interface import (
    BatchState,
    Controller,
    SequenceResult,
    SequenceState,
    StepResult,
)

__all__ = [
    "BatchState",
    "Controller",
    "GoodputController",
    "ProfilePoint",
    "SequenceResult",
    "SequenceState",
    "StepResult",
]
