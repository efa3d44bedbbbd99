"""HTTP bodies on their way in: bounded in bytes, in time, and in how many at once.

The caller is known by then; it knows nothing of what a body says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from specdec.errors import BodyTimeoutError, InvalidRequestError, OverloadedError


class BodyReader:
    """One per gateway replica. At most `max_bytes` each, within `timeout_s`, and `max_bodies` of
    one tenant at a time."""

    def __init__(self, max_bytes: int, timeout_s: float, max_bodies: int) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_bodies = max_bodies
        self._num_reading: Counter[str] = Counter()

    @property
    def num_reading(self) -> int:
        """Bodies that are being read now, all tenants together."""
        return self._num_reading.total()

    async def read(self, http: Request, tenant: str) -> bytes:
        """The whole body.

        Raises InvalidRequestError as soon as it grows past the limit, BodyTimeoutError where its
        end does not come in time, OverloadedError where too many are half-sent, and Starlette's
        ClientDisconnect.
        """
        with self._one_of(tenant):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._all_parts(http)
            except TimeoutError:
                raise BodyTimeoutError(
                    f"body: did not end within {self._timeout_s:g} seconds", field="body"
                ) from None

    async def _all_parts(self, http: Request) -> bytes:
        parts, size = [], 0
        async for part in http.stream():
            size += len(part)
            if size > self._max_bytes:
                raise InvalidRequestError(
                    f"body: is larger than {self._max_bytes} bytes", field="body"
                )
            parts.append(part)
        return b"".join(parts)

    @contextmanager
    def _one_of(self, tenant: str) -> Iterator[None]:
        if self._num_reading[tenant] >= self._max_bodies:
            raise OverloadedError(f"{self._max_bodies} request bodies are being read already")
        self._num_reading[tenant] += 1
        try:
            yield
        finally:
            self._num_reading[tenant] -= 1
            if not self._num_reading[tenant]:
                del self._num_reading[tenant]
