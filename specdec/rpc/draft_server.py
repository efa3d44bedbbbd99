"""The gRPC server of a draft replica: DraftService, health and reflection.

Knows how to start, drain and stop; what is served is in `draft_servicer`.
"""

from __future__ import annotations

import asyncio
import logging

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specdec.errors import UnavailableError
from specdec.rpc.credentials import PeerTokens
from specdec.rpc.draft_observer import DraftObserver
from specdec.rpc.draft_servicer import DraftServicer
from specdec.rpc.security import add_port
from specdec.rpc.transport import SERVER_OPTIONS, quiet_poller_noise
from specdec.speculation.draft_backend import DraftBackend
from specdec.v1 import draft_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = "specdec.v1.DraftService"


class DraftServer:
    """Serves one backend, to at most `max_targets` targets, each with a token of `tokens` (None: of
    a secret of its own).
    All methods must run on one event loop, which is the server's."""

    def __init__(
        self,
        backend: DraftBackend,
        observer: DraftObserver | None = None,
        tokens: PeerTokens | None = None,
        max_targets: int = 64,
    ) -> None:
        self.tokens = tokens if tokens is not None else PeerTokens()
        self._servicer = DraftServicer(backend, self.tokens, max_targets, observer)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    @property
    def num_targets(self) -> int:
        return len(self._servicer.connections)

    async def start(self, address: str) -> int:
        """Listen and serve; returns the port, which the system picks where `address` says 0.

        Raises UnavailableError if the address cannot be had.
        """
        quiet_poller_noise(asyncio.get_running_loop())
        server = grpc.aio.server(options=SERVER_OPTIONS)
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            port = add_port(server, address)
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        await self._set_health(serving=True)
        logger.info("draft server listens on port %d", port)
        return port

    async def drain(self) -> None:
        """Refuse new targets and tell the present ones to go elsewhere; they are still served."""
        self._servicer.draining = True
        await self._set_health(serving=False)
        for connection in self._servicer.connections.values():
            connection.send_heartbeat(self._servicer.heartbeat(0, 0))

    async def stop(self, grace_s: float = 0.5) -> None:
        """End all streams within `grace_s` and free every session."""
        for connection in list(self._servicer.connections.values()):
            connection.close()
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    async def _set_health(self, *, serving: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._health.set(service, statuses.SERVING if serving else statuses.NOT_SERVING)
