"""Tells a step that hangs from one that is only short of CPU: the replica of the first must be
replaced, that of the second has streams which a replacement would cut, and nothing would be faster.

A clock cannot tell them apart; CPU time can. A thread that may run gets some of a busy machine
within fractions of a second, and one that hangs gets none, however long. And whoever looks is short
of CPU as well: a look that comes late says that the machine is busy, not that the step stands.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

# What looking, or a signal, may cost the thread; a step that runs gets more within a look.
NO_CPU_S = 1e-4


def thread_cpu_s(thread: threading.Thread) -> float:
    """CPU seconds that a living thread has had so far."""
    assert thread.ident is not None, "the thread was not started"
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


@dataclass(slots=True)
class StepWatch:
    """Looks at one engine thread, about once per second.

    idle_s: so long may a step go without any CPU. cpu_s: so much CPU may a step take. max_gap_s:
    what a look that comes later counts for.
    """

    idle_s: float = 4.0
    cpu_s: float = 60.0
    max_gap_s: float = 1.5
    _step: float | None = field(default=None, init=False)
    _began_cpu_s: float = field(default=0.0, init=False)
    _looked_s: float = field(default=0.0, init=False)
    _looked_cpu_s: float = field(default=0.0, init=False)
    _without_s: float = field(default=0.0, init=False)

    def look(self, step: float | None, cpu_s: float, now_s: float) -> str | None:
        """Why the running step will not end by itself, None where it may.

        `step` is when it began, None between steps; `cpu_s` the CPU seconds so far of all that
        works on it; `now_s` of the clock that `step` is of.
        """
        if step is None or step != self._step:
            self._step, self._began_cpu_s, self._without_s = step, cpu_s, 0.0
        elif cpu_s - self._looked_cpu_s > NO_CPU_S:
            self._without_s = 0.0
        else:
            self._without_s += min(now_s - self._looked_s, self.max_gap_s)
        self._looked_s, self._looked_cpu_s = now_s, cpu_s
        if self._without_s >= self.idle_s:
            return f"a step stands still: no CPU time in {self._without_s:.0f} s"
        if step is not None and cpu_s - self._began_cpu_s > self.cpu_s:
            return f"a step does not end: {cpu_s - self._began_cpu_s:.0f} s of CPU time"
        return None
