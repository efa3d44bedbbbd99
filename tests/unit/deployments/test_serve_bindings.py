"""Serve's gRPC servers listen where the environment says, and no other server is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deployments.ray_environment import GRPC_ADDRESS, ONLY_LOOPBACK
from deployments.serve_bindings import bound


@pytest.mark.parametrize(
    ("address", "front", "loopback", "expected"),
    [
        ("[::]:0", "", "1", "127.0.0.1:0"),
        ("[::]:9000", "0.0.0.0:9000", "1", "0.0.0.0:9000"),
        ("[::]:9000", "10.0.0.5:9000", "", "10.0.0.5:9000"),
        ("[::]:40000", "10.0.0.5:9000", "1", "127.0.0.1:40000"),
        ("[::]:40000", "10.0.0.5:9000", "", "[::]:40000"),
        ("10.0.0.7:9100", "0.0.0.0:9000", "1", "10.0.0.7:9100"),
    ],
)
def test_bound(monkeypatch, address, front, loopback, expected):
    monkeypatch.setenv(GRPC_ADDRESS, front)
    monkeypatch.setenv(ONLY_LOOPBACK, loopback)
    assert bound(address) == expected


PROGRAM = """
import asyncio, os
import grpc, psutil
from deployments.serve_bindings import confine
confine()
async def main():
    server = grpc.aio.server()
    assert server.add_insecure_port("[::]:0") > 0
    await server.start()
    (listening,) = [c for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
    print(listening.laddr.ip)
    await server.stop(0)
asyncio.run(main())
"""


def test_a_server_of_this_process_is_confined(monkeypatch):
    """In a process of its own: the hook is for good."""
    monkeypatch.setenv(ONLY_LOOPBACK, "1")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().removeprefix("::ffff:") == "127.0.0.1"
