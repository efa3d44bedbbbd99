"""Rounds of one target in a layout: what they take, and what they yield, on average.

A full batch in the long run: sequences that end are replaced, and prompts are computed in the steps
of others. Rounds are synchronous, as in the engine: a step waits for its drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.simulation.costs import LOOKUP, MS
from specdec.simulation.roofline import AROUND_MS, DRAFT_AROUND_S, Placed

FIXED_POINT_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request is like: mean lengths in tokens, and tokens per round for each K."""

    prompt_len: float
    output_len: float
    tokens_per_round: Mapping[int, float]

    @property
    def context_len(self) -> float:
        """KV tokens on average over a request's time."""
        return self.prompt_len + self.output_len / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where drafts run.

    draft: None for lookup, or for no drafting at all with K = 0. targets_per_draft: 0 for a draft
    on the target's own GPUs. round_trip_s: to a draft that is apart. hides: drafting and messages
    hide behind verification entirely, which no draft can do that waits for what is accepted: the
    bound of all that run ahead.
    """

    name: str
    target: Placed
    draft: Placed | None = None
    targets_per_draft: int = 0
    round_trip_s: float = 0.0
    hides: bool = False

    @property
    def is_apart(self) -> bool:
        return self.targets_per_draft > 0

    def gpus(self, num_targets: int) -> int:
        """Of so many targets with their drafts."""
        own = num_targets * self.target.tensor_parallel_size
        if not self.is_apart or self.draft is None:
            return own
        return own + self.num_drafts(num_targets) * self.draft.tensor_parallel_size

    def gpus_per_target(self) -> float:
        """The same for very many."""
        own = float(self.target.tensor_parallel_size)
        if self.is_apart and self.draft is not None:
            own += self.draft.tensor_parallel_size / self.targets_per_draft
        return own

    def num_drafts(self, num_targets: int) -> int:
        """Draft replicas apart."""
        return -(-num_targets // self.targets_per_draft) if self.is_apart else 0

    def kv_capacity_tokens(self) -> int:
        """Of a target; a draft beside it takes its weights, and KV for every token, from it."""
        capacity = self.target.kv_capacity_tokens
        if self.is_apart or self.draft is None:
            return capacity
        model, own = self.target.model, self.draft.model
        left = capacity * model.kv_bytes_per_token - own.weights_bytes
        return max(int(left / (model.kv_bytes_per_token + own.kv_bytes_per_token)), 0)


@dataclass(frozen=True, slots=True)
class Round:
    """An average round of a target with `batch` sequences."""

    batch: int
    k: int
    seconds: float
    tokens: float
    exposed_s: float
    draft_busy: float

    @property
    def goodput_tokens_per_s(self) -> float:
        return self.batch * self.tokens / self.seconds

    @property
    def tpot_s(self) -> float:
        return self.seconds / self.tokens


def average_round(layout: Layout, demand: Demand, batch: int, k: int) -> Round:
    """What a batch does in the long run with the same K for all."""
    tokens = demand.tokens_per_round[k]
    num_kv_tokens = batch * demand.context_len
    target_s = float(layout.target.step_s(batch * (1 + k), num_kv_tokens)) + AROUND_MS * MS
    # Each sequence ends after output_len / tokens rounds, and the next one brings its prompt.
    prompt_tokens = batch * tokens / demand.output_len * demand.prompt_len
    target_s += prompt_tokens * layout.target.token_s
    if not k:
        return Round(batch, k, target_s, tokens, 0.0, 0.0)
    if layout.draft is None:
        return Round(batch, k, target_s + LOOKUP.round_s, tokens, LOOKUP.round_s, 0.0)
    prompts_s = prompt_tokens * layout.draft.token_s
    if not layout.is_apart:
        draft_s = k * _draft_step_s(layout.draft, demand, batch) + prompts_s
        return Round(batch, k, target_s + draft_s, tokens, draft_s, 0.0)
    return _apart(layout, layout.draft, demand, batch, k, target_s, prompts_s)


def _apart(
    layout: Layout,
    draft: Placed,
    demand: Demand,
    batch: int,
    k: int,
    target_s: float,
    prompts_s: float,
) -> Round:
    """A draft that several targets ask once in each of their rounds.

    It serves what waits as one batch. Where it is at work when a target asks, the round waits for
    half a service on average, and then comes together with others: the fixed point of that.
    """
    others = layout.targets_per_draft - 1
    exposed_s = layout.round_trip_s
    busy = 0.0
    for _ in range(FIXED_POINT_ROUNDS):
        period_s = target_s + exposed_s
        together = 1 + busy * others / 2
        service_s = k * _draft_step_s(draft, demand, batch * together) + together * prompts_s
        wanted = others * service_s / together / period_s
        busy += 0.5 * (min(wanted, 1.0) - busy)
        exposed_s = layout.round_trip_s + service_s * (1 + busy / 2)
    own = (service_s / together) / (target_s + exposed_s)
    tokens = demand.tokens_per_round[k]
    if layout.hides:
        # One service after the other for all its targets must fit into a period.
        exposed_s = max((1 + others) * service_s / together - target_s, 0.0)
    return Round(batch, k, target_s + exposed_s, tokens, exposed_s, min(busy + own, 1.0))


def _draft_step_s(draft: Placed, demand: Demand, num_sequences: float) -> float:
    step_s = draft.step_s(num_sequences, num_sequences * demand.context_len)
    return float(step_s) + DRAFT_AROUND_S
