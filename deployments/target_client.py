"""The gateway's way to the target: one Serve handle call per sequence, errors made our own.

Ray's exceptions end here; above are only SpecdecErrors. It knows nothing of HTTP or gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.explanations import ReplicaExplanations
from deployments.target import TargetDescription
from specdec.engine.request import GenerateRequest
from specdec.errors import OverloadedError, SpecdecError, UnavailableError
from specdec.sequence import SequenceOutput

DESCRIBE_TIMEOUT_S = 10.0
EXPLAIN_TIMEOUT_S = 10.0


class TargetClient:
    """Streams outputs of the target deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._generate = handle.options(method_name="generate", stream=True)
        self._handle = handle

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[SequenceOutput, None]:
        """Outputs of one sequence, one per engine step. Leaving it aborts the sequence.

        Raises SpecdecError before or between outputs; an output never carries an error itself.
        """
        response = self._generate.remote(request)
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

        The first failure ends all of them.
        """
        if len(requests) == 1:
            async with aclosing(self.stream(requests[0])) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, SequenceOutput | Exception | None]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._pump(index, request, queue))
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
    ) -> None:
        try:
            async with aclosing(self.stream(request)) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

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


def as_specdec_error(error: Exception) -> SpecdecError:
    """The error that a caller should see for one of Ray's."""
    # First, since Ray raises a class of its own that is both a RayTaskError and one of ours.
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, SpecdecError):
        return cause
    if isinstance(cause, BackPressureError):
        return OverloadedError("too many requests are queued")
    return UnavailableError("the target is not available; try again")
