"""What was counted apart for each class of requests, such as a tenant's; few names, always."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

MAX_CLASSES = 32
OTHER_CLASSES = "other"


@dataclass(slots=True)
class ClassCounts:
    """Totals of one class. `num_steps`: decode steps of its sequences; the rest as in
    EngineCounters."""

    num_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_generation_tokens: int = 0


class ClassCounters(dict[str, ClassCounts]):
    """By class, each from its first request on. Beyond MAX_CLASSES names, new ones share one."""

    def of(self, name: str) -> ClassCounts:
        """The counts to add to."""
        if name not in self and len(self) >= MAX_CLASSES:
            name = OTHER_CLASSES
        return self.setdefault(name, ClassCounts())

    def __copy__(self) -> ClassCounters:
        """A reading that does not change while the original goes on counting."""
        return ClassCounters({name: copy(counts) for name, counts in tuple(self.items())})
