"""Tensor-parallel ranks as processes of this machine, which never outlive rank 0's process.

Knows how to start them, to tell how one ended, and to end them, stopped ones too. What a rank does
in its life is `ranks.py`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NoReturn

import torch.multiprocessing as multiprocessing

from specdec.errors import UnavailableError
from specdec.model.ranks import RankSpec, run_worker
from specdec.model.standstill import StandstillWatch

# Exit code of a rank that is sound itself but has lost the others.
_EXIT_LOST_GROUP = 3
_KILL_DEADLINE_S = 5.0


class LocalWorkers:
    """Ranks 1 to size - 1, started at once; rank r uses device r."""

    def __init__(self, spec: RankSpec, host: str, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = [
            context.Process(
                target=_worker_process,
                args=(rank, spec, host, port),
                name=f"specdec-rank-{rank}",
                daemon=True,
            )
            for rank in range(1, spec.size)
        ]
        # multiprocessing's own clean-up would wait for ever for a stopped process.
        atexit.register(self.end, 0.0)
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1, 2, ..."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def exit_codes(self) -> list[int | None]:
        """Of ranks 1, 2, ...; None while a rank lives, negative where a signal ended it."""
        return [process.exitcode for process in self._processes]

    def lost(self, within_s: float = 0.0) -> str | None:
        """How the first rank ended that did not end because of another one, None where none did
        within the time. A killed rank's connections break before its process can be reaped."""
        deadline = time.monotonic() + within_s
        while True:
            for rank, process in enumerate(self._processes, start=1):
                if process.exitcode not in (None, _EXIT_LOST_GROUP):
                    return f"rank {rank} (process {process.pid}) {_describe_exit(process.exitcode)}"
            running = [each.sentinel for each in self._processes if each.exitcode is None]
            left_s = deadline - time.monotonic()
            if not running or left_s <= 0:
                return None
            wait(running, timeout=left_s)

    def end(self, deadline_s: float) -> None:
        """Wait for the processes until the deadline, then kill those that are left."""
        deadline = time.monotonic() + deadline_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_KILL_DEADLINE_S)
        atexit.unregister(self.end)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _worker_process(rank: int, spec: RankSpec, host: str, port: int) -> NoReturn:
    """A worker's main function. Leaves without Python's clean-up: with a rank lost, freeing a CUDA
    communicator could wait for ever, and without a loss it only costs seconds."""
    # Ctrl-C reaches the whole terminal group; rank 0 then ends the others in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 0
    # Rank 0 is the user's own process, which may be stopped at will: it is left, not ended.
    StandstillWatch([os.getppid()], lambda pid: os._exit(_EXIT_LOST_GROUP))
    try:
        run_worker(rank, spec, host, port, local_rank=rank)
    except UnavailableError as error:
        print(error.message.splitlines()[0], file=sys.stderr)
        code = _EXIT_LOST_GROUP
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
