"""Starved or stuck: what the watch says of clocks and CPU times that it is given."""

from __future__ import annotations

import threading
import time

import pytest

from specdec.engine.step_watch import StepWatch, thread_cpu_s


def looks(watch, *, every_s, cpu_per_look_s, seconds, step=100.0):
    """The first verdict while one step runs, looked at every so often, and after how long."""
    now_s, cpu_s = step, 7.0
    while now_s < step + seconds:
        verdict = watch.look(step, cpu_s, now_s)
        if verdict is not None:
            return verdict, now_s - step
        now_s += every_s
        cpu_s += cpu_per_look_s
    return None, now_s - step


def test_a_step_without_cpu_is_found_within_five_seconds():
    verdict, after_s = looks(StepWatch(), every_s=1.0, cpu_per_look_s=0.0, seconds=60)
    assert verdict == "a step stands still: no CPU time in 4 s"
    assert after_s <= 5.0


@pytest.mark.parametrize("share", [1 / 2, 1 / 40, 1 / 1000])
def test_a_starved_step_may_take_as_long_as_it_takes(share):
    """At load 80 a thread gets a fortieth of one of two cores; far less at a bad niceness."""
    verdict, age_s = looks(StepWatch(), every_s=1.0, cpu_per_look_s=share, seconds=110)
    assert verdict is None
    assert age_s >= 110


def test_who_looks_late_is_short_of_cpu_as_well():
    """A machine that stood still for a minute, with the one who looks: nothing has been shown."""
    watch = StepWatch()
    assert watch.look(100.0, 7.0, 100.0) is None
    assert watch.look(100.0, 7.0, 160.0) is None
    verdict, after_s = looks(StepWatch(), every_s=15.0, cpu_per_look_s=0.0, seconds=600)
    assert verdict is not None, "it hangs after all"
    assert after_s > 15.0


def test_a_step_that_computes_without_end_is_found():
    verdict, after_s = looks(StepWatch(), every_s=1.0, cpu_per_look_s=1.0, seconds=120)
    assert verdict == "a step does not end: 61 s of CPU time"
    assert after_s == 61.0


def test_every_step_has_the_whole_time():
    watch = StepWatch()
    for step in range(100, 200):
        assert watch.look(float(step), 7.0, step + 0.9) is None
    watch = StepWatch()
    for cpu_s in range(200):
        assert watch.look(100.0 + cpu_s, float(cpu_s), 100.0 + cpu_s) is None


def test_no_step_is_no_standstill():
    watch = StepWatch()
    for now_s in range(100):
        assert watch.look(None, 7.0, float(now_s)) is None


def test_threads_have_cpu_times_of_their_own():
    release = threading.Event()
    waiting = threading.Thread(target=release.wait, daemon=True)
    waiting.start()
    before_s = thread_cpu_s(waiting)
    own_s = time.thread_time()
    while time.thread_time() - own_s < 0.2:
        pass
    assert thread_cpu_s(waiting) - before_s < 0.01
    assert thread_cpu_s(threading.current_thread()) >= own_s + 0.2
    release.set()
