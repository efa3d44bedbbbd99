"""What an executed step would have been without the drafts that the controller chose.

Prompts are in it, and so is what clients fixed: that costs what it costs whatever is decided. Both
safety nets, the guard and the first tokens' watch, compare with this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from specdec.speculation.controller.cost import CostModel
from specdec.speculation.controller.interface import StepResult
from specdec.speculation.controller.step import asked_of


@dataclass(frozen=True, slots=True)
class PlainStep:
    """num_tokens: of the target's run, num_prefill_tokens of prompts among them. num_committed:
    what the step committed with its drafts, where a sequence whose K is fixed counts as one, as it
    does in the decision. asked: what clients fixed, as in `asked_of`."""

    num_tokens: int
    num_prefill_tokens: int
    num_sequences: int
    num_committed: int
    asked: dict[str, tuple[int, int]]

    def seconds(self, cost: CostModel, num_kv_tokens: float, more: float = 0.0) -> float:
        """Predicted, with so many tokens more."""
        waited_s = sum(cost.propose_s(name, *amount) for name, amount in self.asked.items())
        return cost.run.at(self.num_tokens + more, num_kv_tokens) + waited_s

    def baseline_s(self, cost: CostModel, num_kv_tokens: float) -> float:
        """What the committed tokens would have taken in steps like this one, and its prompts."""
        whole_s = self.seconds(cost, num_kv_tokens)
        if not self.num_prefill_tokens:
            return self.num_committed / self.num_sequences * whole_s
        decode_s = self.seconds(cost, num_kv_tokens, -self.num_prefill_tokens)
        return self.num_committed / self.num_sequences * decode_s + whole_s - decode_s


def plain_step(result: StepResult, fixed_ids: Collection[int]) -> PlainStep:
    """`fixed_ids`: the sequences whose K is fixed."""
    num_committed = sum(r.num_committed_tokens for r in result.sequences)
    num_drafted = sum(r.num_draft_tokens for r in result.sequences)
    fixed = [r for r in result.sequences if r.seq_id in fixed_ids] if fixed_ids else []
    return PlainStep(
        num_tokens=result.num_tokens - num_drafted + sum(r.num_draft_tokens for r in fixed),
        num_prefill_tokens=result.num_prefill_tokens,
        num_sequences=len(result.sequences),
        num_committed=num_committed - sum(r.num_committed_tokens - 1 for r in fixed),
        asked=asked_of(fixed),
    )
