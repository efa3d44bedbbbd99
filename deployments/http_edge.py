"""What every route gets alike: HEAD where GET is, and other origins' pages where the operator lets
them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALLOWED_METHODS = ("GET", "HEAD", "POST")
# What a page may read of a response, beside what every page may.
EXPOSED_HEADERS = ("retry-after", "x-should-retry", "www-authenticate")
PREFLIGHT_S = 600


class HeadAsGet:
    """Answers HEAD as GET without the body, whose length is still told."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


class Cors:
    """Cross-origin requests from `origins`, which are known when the first request comes.

    Without any, nothing of this exists: a preflight is a method that is not allowed. Credentials
    are never allowed, since keys travel in a header and cookies mean nothing here.
    """

    def __init__(self, app: ASGIApp, origins: Callable[[], Sequence[str]]) -> None:
        self._inner = app
        self._origins = origins
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        if self._app is None:
            self._app = self._built(self._origins())
        await self._app(scope, receive, send)

    def _built(self, origins: Sequence[str]) -> ASGIApp:
        if not origins:
            return self._inner
        return CORSMiddleware(
            self._inner,
            allow_origins=origins,
            allow_methods=ALLOWED_METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=PREFLIGHT_S,
        )
