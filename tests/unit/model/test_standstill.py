"""Stopped processes are found, waiting and busy ones left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from specdec.model.standstill import LOOK_S, MAX_LOOKS, StandstillWatch, kill, process_cpu_s

WITHIN_S = 30.0


@pytest.fixture
def process():
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield running
    running.kill()
    running.wait()


def wait_until(condition):
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_the_promise_of_five_seconds():
    """Half of it is left for connections to break and for streams to end."""
    assert LOOK_S * MAX_LOOKS <= 2.5


def test_a_stopped_process_is_told_once(process):
    told = []
    watch = StandstillWatch([process.pid], told.append)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: told)
    time.sleep(LOOK_S * (MAX_LOOKS + 2))
    watch.stop()
    assert told == [process.pid]


def test_it_is_ended(process):
    StandstillWatch([process.pid], kill)
    process.send_signal(signal.SIGSTOP)
    assert process.wait(WITHIN_S) == -signal.SIGKILL


def test_neither_sleep_nor_a_moment_is_standstill(process):
    told = []
    watch = StandstillWatch([process.pid], told.append)
    time.sleep(LOOK_S * (MAX_LOOKS + 2))
    process.send_signal(signal.SIGSTOP)
    time.sleep(LOOK_S)
    process.send_signal(signal.SIGCONT)
    time.sleep(LOOK_S * MAX_LOOKS)
    watch.stop()
    assert told == []


def test_the_gone_are_not_looked_at(process):
    told = []
    process.kill()
    process.wait()
    watch = StandstillWatch([process.pid], told.append)
    wait_until(lambda: not watch._thread.is_alive())
    assert told == []
    assert process_cpu_s(process.pid) == 0.0


def test_cpu_time_of_another_process(process):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_until(lambda: process_cpu_s(busy.pid) > 0.5)
    finally:
        busy.kill()
        busy.wait()
    assert process_cpu_s(process.pid) < 5.0
