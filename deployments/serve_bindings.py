"""Where Serve's gRPC servers listen, in every Ray worker of a Ray that we have started.

Serve has a host for HTTP and none for gRPC: its Python proxy, the servers of ingress replicas and
the one that each replica has for calls from others are added as `[::]:PORT`, which is every
interface of the machine. Ray runs `confine` in each worker before anything else
(`worker_process_setup_hook`); it stands in the one call that all of them make.
"""

from __future__ import annotations

import os

from grpc.aio._server import Server

from deployments.ray_environment import GRPC_ADDRESS, LOOPBACK, ONLY_LOOPBACK

HOOK = "deployments.serve_bindings.confine"
EVERYWHERE = "[::]:"


def confine() -> None:
    """From now on this process binds Serve's gRPC servers where the environment says."""
    add_port = Server.add_insecure_port

    def add_bound_port(self: Server, address: str) -> int:
        return int(add_port(self, bound(address)))

    Server.add_insecure_port = add_bound_port  # type: ignore[method-assign]


def bound(address: str) -> str:
    """The address to listen on in place of Serve's: the front's for its port, else loopback.
    Addresses that name an interface themselves are no matter of ours."""
    if not address.startswith(EVERYWHERE):
        return address
    front = os.environ.get(GRPC_ADDRESS, "")
    if front.rpartition(":")[2] == address.removeprefix(EVERYWHERE):
        return front
    return address.replace("[::]", LOOPBACK) if os.environ.get(ONLY_LOOPBACK) == "1" else address
