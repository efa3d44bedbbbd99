"""A machine that was measured: step times from the file that `specdec profile` keeps.

Straight lines between measured sizes, and beyond them along the last one. Not the controller's own
model of the same points, so that a controller seeded with them still has something to learn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as SequenceOf
from pathlib import Path

import numpy as np

from specdec.errors import ConfigError
from specdec.simulation.costs import LOOKUP, Asked, Floats, Ints, Machine
from specdec.speculation.controller.profile import (
    DraftPoint,
    ModelProfile,
    ProfilePoint,
    read_profiles,
)


class Profiled(Machine):
    """The target of one profile and, where there is one, the draft of another."""

    def __init__(self, target: ModelProfile, draft: ModelProfile | None = None) -> None:
        self._kv_s, self._sizes, self._step_s = _step_curve(target.steps)
        self._slope = _last_slope(self._sizes, self._step_s)
        super().__init__({"ngram": LOOKUP}, self._slope)
        self._graph_sizes = np.array(target.graph_sizes, dtype=np.int64)
        self._round = None if draft is None else _round_fit(draft.drafts)

    @property
    def drafters(self) -> tuple[str, ...]:
        return ("ngram",) if self._round is None else ("draft", "ngram")

    def run_many_s(self, num_tokens: Ints, num_kv_tokens: int) -> Floats:
        """[sizes]: seconds of steps, padded to the sizes of captured graphs."""
        num_tokens = np.asarray(num_tokens)
        if len(self._graph_sizes):
            place = np.searchsorted(self._graph_sizes, num_tokens)
            padded = self._graph_sizes[place.clip(max=len(self._graph_sizes) - 1)]
            num_tokens = np.maximum(num_tokens, padded)
        at_zero_kv = np.interp(num_tokens, self._sizes, self._step_s)
        beyond = np.maximum(num_tokens - self._sizes[-1], 0) * self._slope
        return np.asarray(at_zero_kv + beyond + self._kv_s * num_kv_tokens)

    def propose_s(self, asked: Asked) -> float:
        """The draft's rounds as fitted: a start, a step, and a step's sequences."""
        total = 0.0
        for name, (depth, tokens) in asked.items():
            if name == "draft" and self._round is not None:
                total += float(self._round @ np.array([1.0, depth, tokens]))
            else:
                total += LOOKUP.round_s
        return total


def read_machine_profile(path: Path) -> Profiled:
    """The first measured target of a file, and the first measured draft of another model, if any.
    Raises ConfigError (field `profile`)."""
    profiles = read_profiles(path)
    target = next((profile for profile in profiles if profile.steps), None)
    if target is None:
        raise ConfigError(f"profile {path}: holds no steps of a target", field="profile")
    draft = next((p for p in profiles if p.drafts and p.key != target.key), None)
    return Profiled(target, draft)


def _step_curve(points: SequenceOf[ProfilePoint]) -> tuple[float, Floats, Floats]:
    """Seconds per KV token, measured sizes, and seconds at each size without KV tokens.

    One slope for all sizes, by least squares on what varies within each of them.
    """
    by_size: dict[int, list[ProfilePoint]] = defaultdict(list)
    for point in points:
        by_size[point.num_tokens].append(point)
    above = below = 0.0
    means = {}
    for size, group in by_size.items():
        kv = np.array([point.num_kv_tokens for point in group], dtype=float)
        seconds = np.array([point.seconds for point in group])
        means[size] = (kv.mean(), seconds.mean())
        above += float(((kv - kv.mean()) * (seconds - seconds.mean())).sum())
        below += float(((kv - kv.mean()) ** 2).sum())
    kv_s = max(above / below, 0.0) if below else 0.0
    sizes = sorted(means)
    step_s = [max(means[size][1] - kv_s * means[size][0], 0.0) for size in sizes]
    return kv_s, np.array(sizes, dtype=float), np.array(step_s)


def _last_slope(sizes: Floats, step_s: Floats) -> float:
    """Seconds per token beyond the largest measured step, never negative."""
    if len(sizes) < 2:
        return 0.0
    return max(float((step_s[-1] - step_s[-2]) / (sizes[-1] - sizes[-2])), 0.0)


def _round_fit(points: SequenceOf[DraftPoint]) -> Floats:
    """[3]: seconds of a round, of each step of its depth, and of each draft token; none negative.

    Least squares on relative errors; what would be negative is left out and the rest fitted again.
    """
    seconds = np.array([point.seconds for point in points])
    rows = np.array([[1.0, p.depth, p.depth * p.num_sequences] for p in points])
    used = np.ones(3, dtype=bool)
    fit = np.zeros(3)
    while used.any():
        weighted = rows[:, used] / seconds[:, None]
        fit[:] = 0.0
        fit[used] = np.linalg.lstsq(weighted, np.ones(len(seconds)), rcond=None)[0]
        if (fit >= 0).all():
            break
        used &= fit > 0
    return fit
