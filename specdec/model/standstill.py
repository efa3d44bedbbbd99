"""Finds processes that are stopped (SIGSTOP, a debugger): they answer nothing, and are not gone.

A deadline cannot tell them from ones that a busy machine lets wait, which must live: the waits of
the ranks for each other are long, and this looks at what the system says of the process.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

LOOK_S = 0.5
# Somebody may have stopped it for a moment.
MAX_LOOKS = 4
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

logger = logging.getLogger(__name__)


def kill(pid: int) -> None:
    """End a stopped process: what it holds open breaks, which its peers notice at once."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


class StandstillWatch:
    """Calls `act(pid)` once for each process that has been stopped for MAX_LOOKS looks in a row."""

    def __init__(self, pids: Sequence[int], act: Callable[[int], None] = kill) -> None:
        self._pids = list(pids)
        self._act = act
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specdec-standstill", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        looks: Counter[int] = Counter()
        while self._pids and not self._stopping.wait(LOOK_S):
            for pid in list(self._pids):
                status = _status(pid)
                looks[pid] = looks[pid] + 1 if status in STOPPED else 0
                if looks[pid] >= MAX_LOOKS:
                    logger.error("process %d has been stopped for %.1f s", pid, LOOK_S * MAX_LOOKS)
                    self._act(pid)
                if status is None or looks[pid] >= MAX_LOOKS:
                    self._pids.remove(pid)


def process_cpu_s(pid: int) -> float:
    """CPU seconds that a process of this machine has had so far; 0 where it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _status(pid: int) -> str | None:
    """None where it is gone."""
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None
    return None if status == psutil.STATUS_ZOMBIE else str(status)
