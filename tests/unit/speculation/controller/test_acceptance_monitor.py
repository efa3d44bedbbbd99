"""What the monitor counts, writes and remembers, by hand-made steps on a clock of its own."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from specdec.errors import ConfigError
from specdec.speculation.controller import SequenceResult, StepResult
from specdec.speculation.controller.acceptance_log import AcceptanceLog, AcceptanceRecord, merge
from specdec.speculation.controller.acceptance_monitor import (
    MAX_REPLAYED_CLASSES,
    AcceptanceMonitor,
    label_of,
)

HOUR_S = 3600.0
NOON_S = 1_796_040_000.0  # 2026-11-30 12:00 UTC


class Clock:
    def __init__(self, now_s: float = NOON_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def step(*rows: tuple[int, int, int], drafter: str = "draft", prefill: int = 0) -> StepResult:
    """One step of 1 ms per token; a row is (sequence, drafted, accepted)."""
    num_tokens = sum(1 + drafted for _, drafted, _ in rows) + prefill
    results = [
        SequenceResult(seq_id, drafter, drafted, drafted, accepted, accepted + 1, False)
        for seq_id, drafted, accepted in rows
    ]
    step_s = num_tokens / 1000
    return StepResult(num_tokens, prefill, 100, 0.0, step_s, step_s, results, 0.0)


@pytest.mark.parametrize("step_s", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_step_of_impossible_length_leaves_a_log_that_can_be_read(log, clock, step_s):
    """Its counts stand; a time that is no number would be refused at the next start."""
    monitor = AcceptanceMonitor(log, clock=clock)
    monitor.observe(replace(step((1, 3, 1)), step_s=step_s), {1: 0.0})
    monitor.close()
    (record,) = log.read().records
    assert (record.rounds, record.target_seconds) == (1, 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path) -> AcceptanceLog:
    return AcceptanceLog(tmp_path / "acceptance.jsonl")


def test_one_hour_by_hand(log, clock):
    monitor = AcceptanceMonitor(log, clock=clock)
    temperatures = {1: 0.0, 2: 0.7, 3: 0.0}
    monitor.observe(step((1, 3, 1), (2, 2, 2), (3, 0, 0)), temperatures)
    monitor.observe(step((1, 2, 0), (3, 3, 3), prefill=10), temperatures)
    clock.now_s += 600
    monitor.close()
    greedy, warm, plain = log.read().records
    # Three greedy rounds with 3, 2 and 3 draft tokens, of which 1, 0 and 3 were accepted.
    assert greedy == AcceptanceRecord(
        start_s=NOON_S,
        seconds=600.0,
        drafter="draft",
        label="greedy",
        rounds=3,
        drafted=(3, 3, 2),
        trials=(3, 2, 1),  # the second position was tried after 1 and 3, the third after 3
        successes=(2, 1, 1),
        tokens=2 + 1 + 4,
        target_seconds=pytest.approx(0.004 + 0.003 + 0.004),
    )
    assert (warm.label, warm.drafted, warm.trials, warm.successes) == (
        "temperature<=1.0",
        (1, 1),
        (1, 1),
        (1, 1),
    )
    assert (plain.drafter, plain.rounds, plain.tokens, plain.drafted) == (None, 1, 1, ())
    assert plain.target_seconds == pytest.approx(0.001)


def test_hours_are_whole_and_counted_apart(log, clock):
    clock.now_s += 1800
    monitor = AcceptanceMonitor(log, clock=clock)
    for rounds in (1, 2, 3):
        for _ in range(rounds):
            monitor.observe(step((1, 1, 1)), {1: 0.0})
        clock.now_s += HOUR_S
    monitor.close()
    records = merge(log.read().records)  # threads may have written in any order
    assert [record.rounds for record in records] == [1, 2, 3]
    assert [record.start_s for record in records] == [NOON_S, NOON_S + HOUR_S, NOON_S + 2 * HOUR_S]
    assert [record.seconds for record in records] == [1800, 3600, 3600]


def test_a_warm_up_is_no_traffic(log, clock):
    monitor = AcceptanceMonitor(log, clock=clock)
    monitor.observe(step((1, 1, 1)), {1: 0.0})
    monitor.discard()
    monitor.close()
    assert log.read().records == ()


def test_temperatures_make_four_classes():
    values = (0.0, 0.1, 0.5, 0.7, 1.0, 1.5)
    assert [label_of(value) for value in values] == [
        "greedy",
        "temperature<=0.5",
        "temperature<=0.5",
        "temperature<=1.0",
        "temperature<=1.0",
        "temperature>1.0",
    ]


def test_a_log_of_any_content_makes_a_bounded_number_of_detectors(log, clock):
    record = AcceptanceRecord(NOON_S, 60.0, "draft", "greedy", 1, (1,), (1,), (1,), 2, 0.1)
    log.append(replace(record, label=f"label {number}") for number in range(200))
    monitor = AcceptanceMonitor(log, clock=clock)
    assert len(monitor._detectors) == MAX_REPLAYED_CLASSES


def traffic(monitor: AcceptanceMonitor, clock: Clock, rate: float, hours: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for accepted in random.binomial(1000, rate, size=hours):
        for outcome, count in ((1, int(accepted)), (0, 1000 - int(accepted))):
            rows = [(seq_id, 1, outcome) for seq_id in range(count)]
            monitor.observe(step(*rows), dict.fromkeys(range(count), 0.0))
        clock.now_s += HOUR_S
    monitor.discard()  # ends no period: the last hour is left out


def test_a_drop_raises_the_gauge_and_a_restart_remembers(log, clock, caplog):
    monitor = AcceptanceMonitor(log, clock=clock)
    traffic(monitor, clock, 0.7, 200, seed=1)
    monitor.close()
    assert monitor.gauges()["drift_alarm_draft"] == 0.0
    assert abs(monitor.gauges()["acceptance_drift_draft"]) < 0.02

    reopened = AcceptanceMonitor(log, clock=clock)
    assert reopened.gauges() == pytest.approx(monitor.gauges())
    with caplog.at_level(logging.WARNING):
        traffic(reopened, clock, 0.49, 170, seed=2)
        reopened.close()
    gauges = reopened.gauges()
    assert gauges["drift_alarm_draft"] == 1.0
    # Seven days at 0.49 against 0.7.
    assert gauges["acceptance_drift_draft"] == pytest.approx(-0.3, abs=0.02)
    assert len(caplog.records) == 1
    assert "dropped below its reference" in caplog.text
    assert gauges["acceptance_log_failures"] == 0.0


def test_a_disk_that_refuses_costs_statistics_and_nothing_else(log, clock, monkeypatch, caplog):
    monitor = AcceptanceMonitor(log, clock=clock)
    monitor.observe(step((1, 1, 1)), {1: 0.0})

    def refuse(records):
        raise OSError("no space left")

    monkeypatch.setattr(log, "append", refuse)
    monitor.close()
    assert monitor.gauges() == {"acceptance_log_failures": 1.0}
    assert "no space left" in caplog.text


def test_a_clock_set_back_loses_no_count(log, clock):
    monitor = AcceptanceMonitor(log, clock=clock)
    monitor.observe(step((1, 1, 1)), {1: 0.0})
    clock.now_s -= 5 * HOUR_S
    monitor.observe(step((1, 1, 0)), {1: 0.0})
    monitor.close()
    (record,) = log.read().records
    assert (record.rounds, record.seconds) == (2, 0.0)


def test_opening_names_what_is_wrong(tmp_path):
    assert AcceptanceMonitor.open(None) is None
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"notes\.txt, line 1: is not JSON"):
        AcceptanceMonitor.open(str(tmp_path / "notes.txt"))
    with pytest.raises(ConfigError, match=r"acceptance_log: cannot write") as caught:
        AcceptanceMonitor.open(str(tmp_path))
    assert caught.value.field == "speculation.acceptance_log"
    os.mkfifo(tmp_path / "pipe")
    for endless in ("/dev/zero", str(tmp_path / "pipe"), "a\0b"):
        with pytest.raises(ConfigError, match=r"acceptance_log: cannot write"):
            AcceptanceMonitor.open(endless)


def test_records_of_one_hour_and_class_count_together():
    one = AcceptanceRecord(0.0, 60.0, "draft", "greedy", 4, (4,), (4,), (2,), 6, 0.5)
    two = AcceptanceRecord(0.0, 90.0, "draft", "greedy", 5, (5, 3), (5, 2), (2, 1), 8, 0.25)
    later = AcceptanceRecord(HOUR_S, 60.0, "draft", "greedy", 1, (1,), (1,), (0,), 1, 0.1)
    both = AcceptanceRecord(0.0, 90.0, "draft", "greedy", 9, (9, 3), (9, 2), (4, 1), 14, 0.75)
    assert merge([later, one, two]) == [both, later]
