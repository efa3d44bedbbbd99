"""What else arXiv 2601.11580 reports: shares of the time, trees, and its own recordings.

Shares and trees in closed form; recordings request for request, with nothing fitted.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path

from specdec.simulation.costs import Llama8B
from specdec.simulation.policies import policy_setting
from specdec.simulation.reproduction.cells import LIMITS, WARM_UP_LIVES
from specdec.simulation.reproduction.machines import machine
from specdec.simulation.reproduction.published import (
    BATCHES,
    DATASETS,
    LOOKUP_MATCHES,
    LOOKUP_TOKENS,
    SHARE_BATCHES,
    SHARES,
    SPEEDUPS,
    TREE_SIZES,
    TREES,
    Curve,
)
from specdec.simulation.reproduction.steady import NONE, Drafting, fit_tokens, speedup, step_time
from specdec.simulation.requests import SimulatedRequest
from specdec.simulation.service.fleet import Fleet, Service, Stretch
from specdec.simulation.traces import load_traces

TREE_DEPTH = 3
SHARES_DATASET = "cnn"
MIN_TOKENS = 20_000


@dataclass(frozen=True, slots=True)
class ShareCell:
    """Parts of a step's time, in per cent: drafting, the target, and all around them."""

    model: str
    drafter: str
    batch: int
    published: tuple[float, float, float]
    simulated: tuple[float, float, float]


def share_cells() -> list[ShareCell]:
    """Figure 4. Tokens per round are those that fit figure 1."""
    cells = []
    for (model, drafter), rows in SHARES.items():
        of = machine(model, SHARES_DATASET)
        drafting, tokens = _fitted(model, drafter)
        for batch, (draft, verify, sampling, overhead) in zip(SHARE_BATCHES, rows, strict=True):
            time = step_time(of, SHARES_DATASET, batch, drafting, tokens)
            parts = (time.draft_s, time.target_s, time.around_s)
            draft_share, target, around = (100 * part / time.total_s for part in parts)
            cells.append(
                ShareCell(
                    model,
                    drafter,
                    batch,
                    (draft, verify, round(sampling + overhead, 1)),
                    (draft_share, target, around),
                )
            )
    return cells


def _fitted(model: str, drafter: str) -> tuple[Drafting, float]:
    if drafter == "none":
        return NONE, 1.0
    curve = next(
        curve
        for curve in SPEEDUPS
        if (curve.model, curve.drafter, curve.dataset) == (model, drafter, SHARES_DATASET)
    )
    share = LOOKUP_MATCHES[SHARES_DATASET] if drafter == "ngram" else 1.0
    drafting = Drafting(drafter, curve.k, share)
    measured = dict(zip(BATCHES[:2], curve.speedups, strict=False))
    return drafting, fit_tokens(machine(model, SHARES_DATASET), SHARES_DATASET, drafting, measured)


@dataclass(frozen=True, slots=True)
class TreeRow:
    """Speed-ups at BATCHES of one shape of drafts; `tokens_per_round` fitted for one sequence."""

    model: str
    dataset: str
    shape: str
    tokens_per_round: float
    published: tuple[float, ...]
    simulated: tuple[float, ...]


def tree_rows() -> list[TreeRow]:
    """Figure 2. All shapes are three deep and cost the draft the same."""
    rows = []
    for (model, dataset), published in TREES.items():
        of = machine(model, dataset)
        drafter = "eagle3" if model == "qwen3-8b" else "eagle"
        for (shape, size), speedups in zip(TREE_SIZES.items(), published, strict=True):
            drafting = Drafting(drafter, TREE_DEPTH, verified=size)
            tokens = fit_tokens(of, dataset, drafting, {1: speedups[0]})
            simulated = tuple(speedup(of, dataset, each, drafting, tokens) for each in BATCHES)
            rows.append(TreeRow(model, dataset, shape, tokens, speedups, simulated))
    return rows


def tree_verdict(rows: SequenceOf[TreeRow]) -> dict[str, bool]:
    """Whether the simulation has what figure 2 shows at batch 64."""
    at = BATCHES.index(64)
    small, *_, large = TREE_SIZES
    return {
        "tree_of_21_below_1_at_64": all(r.simulated[at] < 1 for r in rows if r.shape == large),
        "chain_above_1_at_64": all(r.simulated[at] > 1 for r in rows if r.shape == small),
    }


# -- recordings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """A curve of Llama-3.1-8B beside its recordings played at BATCHES: nothing is fitted. The
    machine is the one whose coefficients the authors measured, not the one that fits the curves."""

    curve: Curve
    simulated: tuple[float, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        pairs = zip(self.simulated, self.curve.speedups, strict=True)
        return tuple(simulated / published - 1 for simulated, published in pairs)


def dataset_of(path: Path) -> str | None:
    """The data set that a file's name tells, if any."""
    return next((name for name in DATASETS if name in path.name.lower()), None)


def recorded_curves(path: Path, seed: int) -> list[RecordedCurve]:
    """All curves of figure 1 that the recordings of one data set can be held against. Raises
    ConfigError (field `trace`)."""
    dataset = dataset_of(path)
    curves = []
    for curve in SPEEDUPS:
        is_recorded = curve.drafter in ("ngram", "eagle")
        if curve.model == "llama-3.1-8b" and curve.dataset == dataset and is_recorded:
            requests = load_traces([path], (curve.drafter,), LOOKUP_TOKENS).requests
            simulated = tuple(_recorded_speedup(curve, requests, each, seed) for each in BATCHES)
            curves.append(RecordedCurve(curve, simulated))
    return curves


def _recorded_speedup(
    curve: Curve, requests: SequenceOf[SimulatedRequest], batch: int, seed: int
) -> float:
    goodputs = []
    for name, tokens in ((f"fixed:{curve.k}", 2.0), ("off", 1.0)):
        drafting = Drafting(curve.drafter, curve.k) if tokens > 1 else NONE
        alike = machine(curve.model, curve.dataset)
        step_s = step_time(alike, curve.dataset, batch, drafting, tokens).total_s
        mean_len = sum(request.output_len for request in requests) / len(requests)
        life_s = mean_len / tokens * step_s
        seconds = max(2 * life_s, MIN_TOKENS / batch / tokens * step_s)
        service = Service(
            requests,
            (curve.drafter,),
            Llama8B(),
            batch,
            max_k=curve.k,
            limits=LIMITS,
            max_undrafted_steps=0,
        )
        setting = policy_setting(name, (curve.drafter,), curve.k)
        stretch = Stretch(-WARM_UP_LIVES * life_s, WARM_UP_LIVES * life_s, seconds)
        goodputs.append(Fleet(service, setting, stretch, seed).run().goodput_tokens_per_s)
    return goodputs[0] / goodputs[1]
