"""Whether our own connections are encrypted, and with which certificates: as Ray's are.

Reads the variables that Ray reads, so that a cluster has one certificate story. With RAY_USE_TLS
both sides must show a certificate of the same authority. What the certificates say of names is
theirs: a server is reached by its IP address, which must be among its alternative names.
"""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import grpc.aio

from specdec.errors import ConfigError
from specdec.rpc.transport import CHANNEL_OPTIONS

USE_TLS = "RAY_USE_TLS"
CERTIFICATE = "RAY_TLS_SERVER_CERT"
KEY = "RAY_TLS_SERVER_KEY"
AUTHORITY = "RAY_TLS_CA_CERT"


def is_encrypted() -> bool:
    """Whether RAY_USE_TLS says so, in any of the spellings that Ray takes."""
    return os.environ.get(USE_TLS, "0").lower() in ("1", "true")


def add_port(server: grpc.aio.Server, address: str) -> int:
    """Let `server` listen at `address`; the port that it got.

    Raises RuntimeError where the address cannot be had, as gRPC does; ConfigError for a certificate
    that cannot be read.
    """
    if not is_encrypted():
        return server.add_insecure_port(address)
    credentials = grpc.ssl_server_credentials(
        [(_read(KEY), _read(CERTIFICATE))], _read(AUTHORITY), require_client_auth=True
    )
    return server.add_secure_port(address, credentials)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel of the running loop to one of our servers. Raises ConfigError for a certificate
    that cannot be read."""
    if not is_encrypted():
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(_read(AUTHORITY), _read(KEY), _read(CERTIFICATE))
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def _read(variable: str) -> bytes:
    path = os.environ.get(variable)
    if not path:
        raise ConfigError(f"{variable}: must name a file where {USE_TLS} is set", field=variable)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{variable}: {error}", field=variable) from None
