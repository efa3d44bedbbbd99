"""The engine on its own thread, for asyncio callers: one generator per request.

The step never waits for the loop and the loop never waits for a step: commands go in through a
queue that the engine empties between steps, outputs come back with one loop call per step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from specdec.engine.engine import Engine
from specdec.engine.request import GenerateRequest
from specdec.engine.step_watch import StepWatch, thread_cpu_s
from specdec.errors import SpecdecError, UnavailableError
from specdec.model.parallel import other_ranks_cpu_s
from specdec.sequence import SequenceOutput

logger = logging.getLogger(__name__)

# Outputs, one per step, that a stream may hold before its sequence is paused.
MAX_OUTPUTS_BEHIND = 128


@dataclass(slots=True, eq=False)
class _Stream:
    """One request's way back to its caller's loop."""

    request: GenerateRequest
    loop: asyncio.AbstractEventLoop
    admitted: asyncio.Future[None]
    outputs: asyncio.Queue[SequenceOutput]
    seq_id: int | None = None
    is_paused: bool = False


class AsyncEngine:
    """Runs an Engine in a thread. `generate` may be called from any event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: SpecdecError | None = None
        self._turn_began_s: float | None = None
        self._watch = StepWatch()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._streams: dict[int, _Stream] = {}
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="specdec-engine", daemon=True)
        self._thread.start()

    # -- the caller's side ---------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[SequenceOutput, None]:
        """Yield one output per step until one carries `finish_reason`.

        Raises InvalidRequestError or OverloadedError before the first output, UnavailableError
        where the engine is lost. Leaving the generator aborts the request. A caller that takes no
        outputs finds its sequence paused after `MAX_OUTPUTS_BEHIND` of them, until it has taken
        half.
        """
        loop = asyncio.get_running_loop()
        stream = _Stream(request, loop, loop.create_future(), asyncio.Queue())
        self._send(lambda: self._admit(stream))
        finished = False
        try:
            await stream.admitted
            while not finished:
                output = await stream.outputs.get()
                finished = output.finish_reason is not None
                if stream.is_paused and stream.outputs.qsize() <= MAX_OUTPUTS_BEHIND // 2:
                    stream.is_paused = False
                    self._send(partial(self.engine.resume, output.seq_id))
                yield output
        finally:
            if not finished:
                self._send(lambda: self._abort(stream))

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs; for health checks."""
        return self._thread.is_alive()

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop after the running step; unfinished requests end with UnavailableError."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.error("the engine's step did not end within %.0f s", timeout_s)

    def _send(self, command: Callable[[], None]) -> None:
        with self._wake:
            if not self._ended:
                self._commands.append(command)
                self._wake.notify()
                return
        # The thread is gone, so nobody else touches the engine; the command tells its caller.
        command()

    def standstill(self) -> str | None:
        """Why the running step will never end, None where it may; for health checks, which ask
        about once per second while `is_alive`."""
        cpu_s = thread_cpu_s(self._thread) + other_ranks_cpu_s(self.engine.executor)
        return self._watch.look(self._turn_began_s, cpu_s, time.monotonic())

    # -- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            self._turn_began_s = time.monotonic()
            self._run_commands()
            if self.failure is None and self.engine.has_work:
                self._step()
            self._turn_began_s = None
        self._end_all(UnavailableError("the engine is shutting down"))
        with self._wake:
            self._ended = True
        self._run_commands()
        self.engine.shutdown()

    def _run_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except Exception:  # whatever it was, the other requests must go on
                logger.exception("a command between two engine steps failed")

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._commands or self._stopping or self._can_step()):
                if not self._wake.wait(1.0) and self.engine.has_work:
                    break  # all are paused; a deadline may have passed
            return not self._stopping

    def _can_step(self) -> bool:
        return self.failure is None and self.engine.scheduler.has_work

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
        except Exception as error:  # the executor is lost, or a bug: every stream must hear of it
            logger.exception("engine step failed")
            self.failure = (
                error if isinstance(error, SpecdecError) else UnavailableError(f"engine: {error}")
            )
            self._end_all(self.failure)
            return
        self._deliver(outputs)

    def _end_all(self, error: SpecdecError) -> None:
        """End every stream. Some may be unknown to the engine by now: what a step had finished
        before it failed is lost with it."""
        self._deliver(self.engine.fail_all(error))
        self._deliver(
            [
                SequenceOutput(
                    seq_id, stream.request.request_id, [], finish_reason="error", error=error
                )
                for seq_id, stream in self._streams.items()
            ]
        )

    def _admit(self, stream: _Stream) -> None:
        try:
            if self.failure is not None or self._stopping:
                failure = self.failure or UnavailableError("the engine is shutting down")
                raise failure.with_traceback(None)  # it would grow with every caller
            sequence = self.engine.add_request(stream.request)
        except Exception as error:  # a bug in one request must not end the thread for all
            if not isinstance(error, SpecdecError):
                logger.exception("could not admit request %s", stream.request.request_id)
            _call(stream.loop, partial(_set_exception, stream.admitted, error))
            return
        stream.seq_id = sequence.seq_id
        self._streams[sequence.seq_id] = stream
        _call(stream.loop, lambda: _set_result(stream.admitted))

    def _abort(self, stream: _Stream) -> None:
        if stream.seq_id is not None and self._streams.pop(stream.seq_id, None) is not None:
            self.engine.abort(stream.seq_id)

    def _deliver(self, outputs: list[SequenceOutput]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, SequenceOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.seq_id)
            if stream is None:
                continue
            if output.finish_reason is not None:
                del self._streams[output.seq_id]
            by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, pairs in by_loop.items():
            _call(loop, partial(self._put_all, pairs))

    def _put_all(self, pairs: list[tuple[_Stream, SequenceOutput]]) -> None:
        """On the caller's loop, which alone decides who is paused: so no resume is lost."""
        for stream, output in pairs:
            stream.outputs.put_nowait(output)
            if stream.outputs.qsize() >= MAX_OUTPUTS_BEHIND and not stream.is_paused:
                stream.is_paused = True
                self._send(partial(self.engine.pause, output.seq_id))


def _set_exception(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the caller's loop is closed; nobody is left to tell
        logger.debug("a request's event loop is gone")
