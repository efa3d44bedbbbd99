"""A draft engine on a thread of its own: the DraftBackend that a gRPC server stands on.

Takes messages from any thread, runs the engine while there is work, and hands each target what
became ready in a pass, together. It knows threads and callbacks; drafting is the engine's matter.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from specdec.config import DraftConfig
from specdec.engine.draft_builder import build_draft_engine, token_strings
from specdec.engine.draft_engine import DraftEngine
from specdec.engine.draft_inbox import Inbox
from specdec.engine.draft_store import Outbox
from specdec.engine.draft_warmup import warm_up_draft
from specdec.engine.step_watch import StepWatch, thread_cpu_s
from specdec.errors import UnavailableError
from specdec.model.executor import Executor
from specdec.model.parallel import other_ranks_cpu_s
from specdec.speculation.draft_backend import Deliver
from specdec.speculation.handshake import hello_fault
from specdec.speculation.messages import DraftInfo, DraftMessage, Heartbeat, Hello, TargetMessage

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 5
FAILURE_PAUSE_S = 0.05
LOAD_WINDOW_S = 1.0


class BusyMeter:
    """Share of recent time spent working, exponentially weighted over LOAD_WINDOW_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy = 0.0
        self._since_s = clock()
        self._is_busy = False

    @property
    def busy_fraction(self) -> float:
        weight = math.exp((self._since_s - self._clock()) / LOAD_WINDOW_S)
        return self._busy * weight + (1 - weight) * self._is_busy

    def switch(self, is_busy: bool) -> None:
        """From now on the owner is busy, or idle."""
        self._busy = self.busy_fraction
        self._since_s = self._clock()
        self._is_busy = is_busy


class DraftThread:
    """Runs a DraftEngine; every public method may be called from any thread.

    An error of the model declines all sessions and the thread goes on; after
    MAX_CONSECUTIVE_FAILURES in a row, or the loss of a rank, it stays up, declines everything and
    `check_health` raises, so that the replica is replaced.
    """

    def __init__(self, engine: DraftEngine, vocabulary: Sequence[str]) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._meter = BusyMeter()
        self._num_failures = 0
        self._fault: str | None = None
        self._busy_since_s: float | None = None
        self._watch = StepWatch()
        self._wake = threading.Condition()
        self._tasks: list[Callable[[], None]] = []
        self._inboxes: dict[str, Inbox] = {}
        self._is_stopping = False
        # Re-entrant, so that a `deliver` may drop its own target.
        self._deliver_lock = threading.RLock()
        self._deliver: dict[str, Deliver] = {}
        self._thread = threading.Thread(target=self._loop, name="draft-engine", daemon=True)
        self._thread.start()

    # -- DraftBackend --------------------------------------------------------------------------

    def info(self) -> DraftInfo:
        return self._engine.info

    def vocabulary(self) -> Sequence[str]:
        return self._vocabulary

    def attach(self, target: str, hello: Hello, deliver: Deliver) -> None:
        fault = hello_fault(hello)
        if fault is not None:  # raised here, since on the engine's thread nobody would hear it
            raise ValueError(f"target {target}: {fault}")
        with self._deliver_lock:
            self._deliver[target] = deliver
        with self._wake:
            self._inboxes[target] = Inbox()
        self._post(lambda: self._engine.add_target(target, hello.vocab_size))

    def submit(self, target: str, messages: list[TargetMessage]) -> None:
        with self._wake:
            inbox = self._inboxes.get(target)
            if inbox is not None:
                inbox.put(messages)
                self._wake.notify()

    def behind(self, target: str) -> Future[None] | None:
        with self._wake:
            inbox = self._inboxes.get(target)
            return inbox.behind() if inbox is not None else None

    def drop_target(self, target: str) -> None:
        with self._deliver_lock:  # held during deliveries: none is under way or follows
            self._deliver.pop(target, None)
        with self._wake:
            inbox = self._inboxes.pop(target, None)
            if inbox is not None:
                inbox.let_go()
        self._post(lambda: self._engine.drop_target(target))

    def load(self) -> Heartbeat:
        load = self._engine.load()
        load.idle_fraction = 1.0 - self._meter.busy_fraction
        return load

    # -- life ----------------------------------------------------------------------------------

    def warm_up(self, timeout_s: float = 600.0) -> None:
        """Run every kernel once, before any target is attached."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                warm_up_draft(self._engine)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._post(run)
        done.result(timeout_s)

    def drain(self) -> None:
        """Refuse new sessions; open ones go on."""
        self._post(self._engine.drain)

    def check_health(self) -> None:
        """Raises UnavailableError where the thread is dead, stuck or without a working model."""
        if self._fault is not None:
            raise UnavailableError(f"draft engine: {self._fault}")
        if not self._thread.is_alive():
            raise UnavailableError("draft engine: its thread is not running")
        cpu_s = thread_cpu_s(self._thread) + other_ranks_cpu_s(self._engine.executor)
        reason = self._watch.look(self._busy_since_s, cpu_s, time.monotonic())
        if reason is not None:
            raise UnavailableError(f"draft engine: {reason}")

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the thread after the pass it is in and shut the executor down; False where the pass
        did not end in time. Idempotent."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._engine.executor.shutdown()
        return True

    # -- the thread ----------------------------------------------------------------------------

    def _post(self, task: Callable[[], None]) -> None:
        with self._wake:
            self._tasks.append(task)
            self._wake.notify()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._is_stopping or self._has_mail() or self._has_work()):
                    self._wake.wait()
                if self._is_stopping:
                    return
                tasks, self._tasks = self._tasks, []
                full = [(target, inbox) for target, inbox in self._inboxes.items() if inbox]
                mail = [(target, inbox.take(len(full))) for target, inbox in full]
            self._meter.switch(is_busy=True)
            self._busy_since_s = time.monotonic()
            for task in tasks:
                task()
            for target, messages in mail:
                self._engine.submit(target, messages)
            self._send(self._step())
            self._busy_since_s = None
            self._meter.switch(is_busy=False)

    def _has_mail(self) -> bool:
        return bool(self._tasks) or any(self._inboxes.values())

    def _has_work(self) -> bool:
        return self._fault is None and self._engine.has_work

    def _step(self) -> Outbox:
        if self._fault is not None:
            return self._engine.fail()
        try:
            sent = self._engine.step()
            self._num_failures = 0
            return sent
        except Exception as error:
            self._note_failure(error)
            return self._engine.fail()

    def _note_failure(self, error: Exception) -> None:
        self._num_failures += 1
        logger.exception("draft pass failed, %d in a row", self._num_failures)
        if isinstance(error, UnavailableError) or self._num_failures >= MAX_CONSECUTIVE_FAILURES:
            self._fault = f"{type(error).__name__}: {error}"
        else:
            time.sleep(FAILURE_PAUSE_S * 2**self._num_failures)

    def _send(self, sent: Outbox) -> None:
        by_target: dict[str, list[DraftMessage]] = {}
        for target, message in sent:
            by_target.setdefault(target, []).append(message)
        for target, messages in by_target.items():
            with self._deliver_lock:
                deliver = self._deliver.get(target)
                if deliver is not None:
                    _deliver_safely(target, deliver, messages)


def build_draft_thread(config: DraftConfig, executor: Executor | None = None) -> DraftThread:
    """Load the draft model, unless `executor` holds it, and start its thread. Raises ConfigError
    for a model that cannot be served."""
    engine, tokenizer = build_draft_engine(config, executor)
    return DraftThread(engine, token_strings(tokenizer))


def _deliver_safely(target: str, deliver: Deliver, messages: list[DraftMessage]) -> None:
    try:
        deliver(messages)
    except Exception:
        # One target's broken connection must not stop drafting for the others.
        logger.exception("could not deliver to target %s", target)
