"""How much a gateway replica writes ahead of who reads: a socket's buffer that does not grow.

The kernel lets it grow to megabytes, which are tens of thousands of tokens: a stream would be at
its end before anybody felt that its reader has stopped. Serve makes the socket of its HTTP server
itself, and has no setting for it.
"""

from __future__ import annotations

import functools
import socket

import uvicorn

# The kernel doubles it. Beside it stand uvicorn's own 64 KiB.
SEND_BUFFER = 32 * 2**10


def bound_write_buffers() -> None:
    """From now on the HTTP servers of this process listen with sockets whose connections, which
    take it over, hold little. Called before Serve starts the replica's server."""
    serve = uvicorn.Server.serve
    if hasattr(serve, "__wrapped__"):
        return  # a second gateway in one process

    @functools.wraps(serve)
    async def serve_bounded(
        self: uvicorn.Server, sockets: list[socket.socket] | None = None
    ) -> None:
        for listening in sockets or ():
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        await serve(self, sockets)

    uvicorn.Server.serve = serve_bounded  # type: ignore[method-assign]
