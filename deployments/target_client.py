"""The gateway's way to the target: one Serve handle call per sequence, errors made our own.

Ray's exceptions end here; above are only SpecdecErrors. It knows nothing of HTTP or gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.explanations import ReplicaExplanations
from deployments.reader_watch import ReaderWatch, Reading
from deployments.target import TargetDescription
from specdec.engine.request import GenerateRequest
from specdec.errors import OverloadedError, SpecdecError, UnavailableError
from specdec.sequence import SequenceOutput

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 10.0
FLOW_TIMEOUT_S = 10.0
EXPLAIN_TIMEOUT_S = 10.0


class TargetClient:
    """Streams outputs of the target deployment."""

    def __init__(self, handle: DeploymentHandle, reader_timeout_s: float) -> None:
        self._readers = ReaderWatch(self, reader_timeout_s)
        self._generate = handle.options(method_name="generate", stream=True)
        self._handle = handle

    async def stream(
        self, request: GenerateRequest, stream_id: str = "", reading: Reading | None = None
    ) -> AsyncGenerator[SequenceOutput, None]:
        """Outputs of one sequence, one per engine step. Leaving it aborts the sequence.

        Raises SpecdecError before or between outputs; an output never carries an error itself.
        """
        response = self._generate.remote(request, stream_id or new_stream_id())
        if reading is not None:
            reading.calls.append(response)
        try:
            async for output in response:
                if output.error is not None:
                    raise output.error
                yield output
        except (RayError, BackPressureError, DeploymentUnavailableError) as error:
            raise as_specdec_error(error) from None
        finally:
            response.cancel()

    async def merged(
        self, requests: list[GenerateRequest]
    ) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        """Outputs of several sequences as they come, each with its request's index.

        The first failure ends all of them. They wait for a reader that is behind, and end where it
        takes nothing for `reader_timeout_s`.
        """
        reading = self._readers.begin([new_stream_id() for _ in requests])
        try:
            async with aclosing(self._unwatched(requests, reading)) as outputs:
                async for item in outputs:
                    reading.give()
                    yield item
                    self._readers.taken(reading)
        finally:
            self._readers.end(reading)

    async def _unwatched(
        self, requests: list[GenerateRequest], reading: Reading
    ) -> AsyncGenerator[tuple[int, SequenceOutput], None]:
        if len(requests) == 1:
            stream = self.stream(requests[0], reading.stream_ids[0], reading)
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, SequenceOutput | Exception | None]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._pump(index, request, queue, reading))
            for index, request in enumerate(requests)
        ]
        try:
            num_open = len(tasks)
            while num_open:
                index, item = await queue.get()
                if item is None:
                    num_open -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield index, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self,
        index: int,
        request: GenerateRequest,
        queue: asyncio.Queue[tuple[int, SequenceOutput | Exception | None]],
        reading: Reading,
    ) -> None:
        try:
            stream = self.stream(request, reading.stream_ids[index], reading)
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    async def hold(self, stream_ids: Sequence[str]) -> int:
        """See `Target.hold`; every replica is asked, since each knows its own streams alone."""
        answers = await self._tell("hold", stream_ids)
        return sum(answer for answer in answers if isinstance(answer, int))

    async def release(self, stream_ids: Sequence[str]) -> None:
        """See `Target.release`."""
        await self._tell("release", stream_ids)

    async def _tell(self, method: str, stream_ids: Sequence[str]) -> list[object]:
        """A replica that is gone has no streams, and one that does not answer is no reason to end
        a response."""
        try:
            return await self._handle.broadcast(method, list(stream_ids)).results_async(
                timeout_s=FLOW_TIMEOUT_S, return_exceptions=True
            )
        except Exception as error:
            logger.warning("could not tell the targets to %s a stream: %s", method, error)
            return []

    async def describe_all(self, timeout_s: float = DESCRIBE_TIMEOUT_S) -> list[TargetDescription]:
        """What every target replica says of itself; those that do not answer in time are left out.

        The public `results_async` would leave out all of them where one is late.
        """
        deadline_s = time.monotonic() + timeout_s
        with suppress(Exception):  # no replica, or Serve's controller is away
            async with asyncio.timeout(timeout_s):
                calls = await self._handle.broadcast("describe")._fetch_replica_results_async()
            answers = [asyncio.ensure_future(call.get_async()) for call in calls]
            if answers:
                left_s = max(0.0, deadline_s - time.monotonic())
                _, late = await asyncio.wait(answers, timeout=left_s)
                for answer in late:
                    answer.cancel()
            described = await asyncio.gather(*answers, return_exceptions=True)
            return [item for item in described if isinstance(item, TargetDescription)]
        return []

    async def explain(self, request_id: str, tenant: str) -> list[ReplicaExplanations]:
        """What each target replica knows of a tenant's request.

        Raises UnavailableError where nobody knows it and not every replica answered in time.
        """
        try:
            answers = await self._handle.broadcast("explain", request_id, tenant).results_async(
                timeout_s=EXPLAIN_TIMEOUT_S, return_exceptions=True
            )
        except Exception as error:  # no replica, or Serve's controller is away
            raise as_specdec_error(error) from None
        known = [item for item in answers if isinstance(item, ReplicaExplanations)]
        if len(known) < len(answers) and not any(item.sequences for item in known):
            raise UnavailableError("not every target replica answered; try again")
        return known


def new_stream_id() -> str:
    """A request's own id will not do: clients choose those, and choose the same."""
    return uuid.uuid4().hex


def as_specdec_error(error: Exception) -> SpecdecError:
    """The error that a caller should see for one of Ray's."""
    # First, since Ray raises a class of its own that is both a RayTaskError and one of ours.
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, SpecdecError):
        return cause
    if isinstance(cause, BackPressureError):
        return OverloadedError("too many requests are queued")
    return UnavailableError("the target is not available; try again")
