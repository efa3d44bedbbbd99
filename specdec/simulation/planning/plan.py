"""The cheapest layout that carries a load within its latency target, and how the others compare."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from specdec.errors import ConfigError
from specdec.simulation.planning.layouts import Demand, Layout, Round, average_round
from specdec.simulation.roofline import Placed

TARGETS_PER_DRAFT = (1, 2, 3, 4, 6, 8)
# Ratios closer than this are no difference that closed formulas could tell.
SAME = 0.02


@dataclass(frozen=True, slots=True)
class Load:
    """requests_per_s at the peak. tpot_s: time per output token that must be kept. headroom: part
    of a replica's capacity that the plan uses, the rest being for bursts."""

    requests_per_s: float
    tpot_s: float
    headroom: float = 0.85
    max_num_sequences: int = 256


@dataclass(frozen=True, slots=True)
class Option:
    """One layout at its best K for this load.

    full: the round of a replica that is as full as the load allows. least_k, most_k: the best K
        from one sequence to that batch. loaded: the round at the planned load.
    """

    layout: Layout
    full: Round
    loaded: Round
    num_targets: int
    least_k: int
    most_k: int
    requests_per_s_per_gpu: float

    @property
    def gpus(self) -> int:
        return self.layout.gpus(self.num_targets)

    @property
    def num_drafts(self) -> int:
        return self.layout.num_drafts(self.num_targets)


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts, the best first. Layouts that cannot keep the latency are left out.

    hidden: what drafts apart could carry per GPU at most if drafting hid behind verification, in
        requests per second; None without drafts apart.
    """

    options: tuple[Option, ...]
    hidden: float | None = None

    @property
    def best(self) -> Option:
        return self.options[0]

    def find(self, name: str) -> Option | None:
        """The option of a layout."""
        return next((option for option in self.options if option.layout.name == name), None)

    @property
    def best_apart(self) -> Option | None:
        """The layout with drafts apart that carries most per GPU."""
        apart = [option for option in self.options if option.layout.is_apart]
        return max(apart, key=lambda option: option.requests_per_s_per_gpu, default=None)

    @property
    def best_together(self) -> Option | None:
        """The layout without drafts apart that carries most per GPU."""
        together = [option for option in self.options if not option.layout.is_apart]
        return max(together, key=lambda option: option.requests_per_s_per_gpu, default=None)


NONE, BESIDE, LOOKUP = "no speculation", "draft beside the target", "lookup in the target"


def layouts(
    target: Placed, beside: Placed | None, apart: Placed | None, round_trip_s: float
) -> list[Layout]:
    """All that there are: without drafts, with lookup where there is no draft, a draft beside the
    target, and drafts apart for one or more targets each."""
    found = [Layout(NONE, target)]
    if beside is None and apart is None:
        found.append(Layout(LOOKUP, target))
    if beside is not None:
        found.append(Layout(BESIDE, target, beside))
    if apart is not None:
        found += [
            Layout(_apart_name(count), target, apart, count, round_trip_s)
            for count in TARGETS_PER_DRAFT
        ]
    return found


def _apart_name(count: int) -> str:
    return "draft apart" if count == 1 else f"one draft apart for {count} targets"


def make_plan(candidates: SequenceOf[Layout], demand: Demand, load: Load) -> Plan:
    """The options by GPUs, then by time per token.

    Raises ConfigError (field `tpot_ms`) where no layout keeps the latency with one sequence.
    """
    options = [option for layout in candidates if (option := _option(layout, demand, load))]
    if not options:
        fastest = min(
            average_round(layout, demand, 1, k).tpot_s
            for layout in candidates
            for k in _ks(layout, demand)
        )
        raise ConfigError(
            f"tpot_ms: no layout is that fast; alone, a sequence takes {1000 * fastest:.2f} ms "
            "per token at best",
            field="tpot_ms",
        )
    ranked = tuple(sorted(options, key=lambda each: (each.gpus, each.loaded.tpot_s)))
    bounds = [
        option.requests_per_s_per_gpu
        for layout in candidates
        if layout.is_apart and (option := _option(replace(layout, hides=True), demand, load))
    ]
    return Plan(ranked, max(bounds, default=None))


def _ks(layout: Layout, demand: Demand) -> SequenceOf[int]:
    return (0,) if layout.name == NONE else sorted(demand.tokens_per_round)


def _option(layout: Layout, demand: Demand, load: Load) -> Option | None:
    full = _fullest(layout, demand, load)
    if full is None:
        return None
    per_target = load.headroom * full.goodput_tokens_per_s / demand.output_len
    num_targets = max(math.ceil(load.requests_per_s / per_target - 1e-9), 1)
    wanted = load.requests_per_s / num_targets * demand.output_len
    batches = range(1, full.batch + 1)
    best = [best_round(layout, demand, batch) for batch in _powers(full.batch)]
    loaded = next(
        (
            each
            for batch in batches
            if (each := best_round(layout, demand, batch)).goodput_tokens_per_s >= wanted
        ),
        full,
    )
    return Option(
        layout,
        full,
        loaded,
        num_targets,
        min(each.k for each in best),
        max(each.k for each in best),
        per_target / layout.gpus_per_target(),
    )


def best_round(layout: Layout, demand: Demand, batch: int) -> Round:
    """The K with most goodput at this batch size; the smallest of equals."""
    rounds = [average_round(layout, demand, batch, k) for k in _ks(layout, demand)]
    return max(rounds, key=lambda each: each.goodput_tokens_per_s)


def _fullest(layout: Layout, demand: Demand, load: Load) -> Round | None:
    """The round with most goodput that keeps the latency, whatever its batch and K; None where not
    even one sequence does."""
    longest = demand.prompt_len + demand.output_len
    held = min(int(layout.kv_capacity_tokens() / longest), load.max_num_sequences)
    rounds = [
        average_round(layout, demand, batch, k)
        for batch in _batches(held)
        for k in _ks(layout, demand)
    ]
    fitting = [each for each in rounds if each.tpot_s <= load.tpot_s]
    return max(fitting, key=lambda each: each.goodput_tokens_per_s, default=None)


def _batches(most: int) -> list[int]:
    """1 to `most`, in steps of about 3 %."""
    sizes = {most} if most else set()
    size = 1.0
    while size < most:
        sizes.add(int(size))
        size = max(size * 1.03, size + 1)
    return sorted(sizes)


def _powers(most: int) -> list[int]:
    """1, 2, 4 and on, and `most`."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def verdict(plan: Plan) -> str:
    """In one sentence or two, whether drafts apart pay per GPU."""
    apart, together = plan.best_apart, plan.best_together
    if apart is None:
        return "No layout with a draft apart was asked for, or none keeps the latency."
    if together is None:
        return "Only a draft apart keeps the latency: it is what that buys."
    ratio = apart.requests_per_s_per_gpu / together.requests_per_s_per_gpu
    versus = f"{apart.layout.name} carries {ratio:.2f} times what {together.layout.name} carries"
    if ratio > 1 + SAME:
        return f"A draft apart pays per GPU: {versus}."
    if ratio >= 1 - SAME:
        return f"A draft apart neither pays nor costs per GPU: {versus}."
    text = f"A draft apart does not pay per GPU: {versus}."
    if plan.hidden is not None:
        bound = plan.hidden / together.requests_per_s_per_gpu
        text += f" Were all drafting hidden behind verification, it would be {bound:.2f} times."
    return text
