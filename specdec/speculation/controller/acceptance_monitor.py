"""Watches a draft's acceptance over weeks: counts per class and hour, a log, a drift detector each.

The engine feeds it executed steps. It changes no decision. A class is a drafter and one of four
temperature ranges, for acceptance depends on both: a change of the mix must not look like drift.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdec.errors import ConfigError
from specdec.speculation.controller.acceptance_log import AcceptanceLog, AcceptanceRecord, merge
from specdec.speculation.controller.drift import DriftDetector
from specdec.speculation.controller.interface import StepResult

logger = logging.getLogger(__name__)

PERIOD_S = 3600.0
MAX_REPLAYED_CLASSES = 64
CLOSE_TIMEOUT_S = 5.0

# A drafter (None: rounds without draft tokens) and a label.
ClassKey = tuple[str | None, str]


def label_of(temperature: float) -> str:
    """The label of requests that sample at `temperature`; there are four."""
    if temperature == 0:
        return "greedy"
    if temperature <= 0.5:
        return "temperature<=0.5"
    return "temperature<=1.0" if temperature <= 1 else "temperature>1.0"


@dataclass(slots=True)
class _Tally:
    """One class in the running period: rounds by (draft tokens, accepted ones)."""

    outcomes: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    num_tokens: int = 0
    target_s: float = 0.0


class AcceptanceMonitor:
    """Counts acceptance, writes a record per class and period, and says where it has drifted."""

    def __init__(
        self,
        log: AcceptanceLog,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._period_s = period_s
        self._clock = clock
        self._detectors: dict[ClassKey, DriftDetector] = {}
        self._writers: list[threading.Thread] = []
        self._num_failed_writes = 0
        self._gauges: dict[str, float] = {}
        self._start(clock(), clock())
        self._replay(log.read().records)

    @classmethod
    def open(cls, path: str | None) -> AcceptanceMonitor | None:
        """A monitor whose records go to `path`, and whose references come from what is there; None
        without a path. Raises ConfigError where the file is no log or cannot be written."""
        if path is None:
            return None
        log = AcceptanceLog(Path(path))
        try:
            log.touch()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"speculation.acceptance_log: cannot write to {path}: {error}",
                field="speculation.acceptance_log",
            ) from error
        return cls(log)

    def observe(self, result: StepResult, temperatures: Mapping[int, float]) -> None:
        """Count one executed step; `temperatures` has each sequence's, by id."""
        now_s = self._clock()
        if now_s >= self._period_start_s + self._period_s:
            self._end_period(now_s)
        # A time that no clock can have shown would make the log unreadable.
        token_s = result.step_s / max(result.num_tokens, 1) if result.has_sound_times else 0.0
        for row in result.sequences:
            drafted = row.num_draft_tokens
            label = label_of(temperatures[row.seq_id])
            tally = self._tallies[row.drafter if drafted else None, label]
            tally.outcomes[drafted, row.num_accepted_tokens] += 1
            tally.num_tokens += row.num_committed_tokens
            tally.target_s += (1 + drafted) * token_s

    def discard(self) -> None:
        """Forget what the running period has counted: it was no traffic."""
        now_s = self._clock()
        self._start(now_s, now_s)

    def gauges(self) -> dict[str, float]:
        """By drafter: recent acceptance of the first draft token over its reference, less 1 (mean
        over classes, weighted with their traffic), and whether a class has dropped. As of the last
        whole period; may be read from any thread."""
        return {**self._gauges, "acceptance_log_failures": float(self._num_failed_writes)}

    def close(self) -> None:
        """Write what the running period has counted. Waits a few seconds at most."""
        self._end_period(self._clock())
        for writer in self._writers:
            writer.join(CLOSE_TIMEOUT_S)

    # -- periods -------------------------------------------------------------------------------

    def _start(self, now_s: float, running_since_s: float) -> None:
        self._period_start_s = now_s // self._period_s * self._period_s
        self._observed_from_s = max(self._period_start_s, running_since_s)
        self._tallies: defaultdict[ClassKey, _Tally] = defaultdict(_Tally)

    def _end_period(self, now_s: float) -> None:
        end_s = min(now_s, self._period_start_s + self._period_s)
        seconds = max(end_s - self._observed_from_s, 0.0)
        records = [self._record(key, tally, seconds) for key, tally in self._tallies.items()]
        for record in records:
            self._detect(record)
        self._gauges = self._levels()
        self._start(now_s, self._observed_from_s)
        if records:
            # A slow disk must not hold up the engine's step.
            writer = threading.Thread(target=self._write, args=(records,), daemon=True)
            self._writers = [*(w for w in self._writers if w.is_alive()), writer]
            writer.start()

    def _record(self, key: ClassKey, tally: _Tally, seconds: float) -> AcceptanceRecord:
        depth = max(drafted for drafted, _ in tally.outcomes)
        drafted_at, trials, successes = [0] * depth, [0] * depth, [0] * depth
        for (drafted, accepted), count in tally.outcomes.items():
            for position in range(drafted):
                drafted_at[position] += count
                trials[position] += count * (position <= accepted)
                successes[position] += count * (position < accepted)
        return AcceptanceRecord(
            start_s=self._period_start_s,
            seconds=seconds,
            drafter=key[0],
            label=key[1],
            rounds=sum(tally.outcomes.values()),
            drafted=tuple(drafted_at),
            trials=tuple(trials),
            successes=tuple(successes),
            tokens=tally.num_tokens,
            target_seconds=tally.target_s,
        )

    def _write(self, records: list[AcceptanceRecord]) -> None:
        try:
            self._log.append(records)
        except OSError as error:
            self._num_failed_writes += 1
            logger.warning("acceptance statistics of one period are lost: %s", error)

    # -- detectors -----------------------------------------------------------------------------

    def _replay(self, records: Iterable[AcceptanceRecord]) -> None:
        """Learn from earlier runs, so that a restart does not begin a new reference."""
        for record in merge(records):
            self._detect(record)
        self._gauges = self._levels()

    def _detect(self, record: AcceptanceRecord) -> None:
        if record.drafter is None or not record.trials:
            return
        key = (record.drafter, record.label)
        if key not in self._detectors:
            if len(self._detectors) >= MAX_REPLAYED_CLASSES:
                return
            self._detectors[key] = DriftDetector()
        detector = self._detectors[key]
        was_low = detector.has_dropped
        detector.observe(record.start_s, record.trials[0], record.successes[0])
        if detector.has_dropped and not was_low:
            logger.warning(
                "the acceptance of %s (%s) has dropped below its reference of %.3f: see "
                "`specdec drift %s`",
                record.drafter,
                record.label,
                detector.reference.rate,
                self._log.path,
            )

    def _levels(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for drafter in {drafter for drafter, _ in self._detectors}:
            mine = [each for (name, _), each in self._detectors.items() if name == drafter]
            changes = [(each.relative_change, each.recent_trials) for each in mine]
            known = [(change, weight) for change, weight in changes if change is not None]
            if known:
                weighted = math.fsum(change * weight for change, weight in known)
                values[f"acceptance_drift_{drafter}"] = weighted / sum(w for _, w in known)
                values[f"drift_alarm_{drafter}"] = float(any(each.has_dropped for each in mine))
        return values
