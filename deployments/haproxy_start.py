"""Starts HAProxy for Serve with a config that says where each of its ports is bound.

    python -m deployments.haproxy_start BINARY HOST FOLDER -db -f CONFIG ...

Serve's template binds statistics and metrics on all interfaces, without a key and without a
setting, and gives the front's host to the replicas behind it as well. It leaves the sockets'
buffers to the kernel, which then holds megabytes for a client that has stopped reading, and lets
the kernel forward requests, in which no end of a connection is seen any more: who sends a body
behind its head, as httpx does, and leaves, is generated for to the end. Serve
starts the executable that RAY_SERVE_HAPROXY_BINARY_PATH names at every change of replicas: this
one, which rewrites the config that Serve has just written, and becomes HAProxy (Serve knows it by
its process id). In a pod it is `specdec-haproxy`, at all addresses.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from deployments.ray_environment import installed_haproxy

# A request's head must be there by then; idle connections are another matter.
HEAD_TIMEOUT_S = 30
# What HAProxy's sockets keep for a client that reads nothing (the kernel doubles both). Nobody
# feels that a reader has stopped before they are full; one far away gets 1 MiB/s and more.
BUFFERS = {"tune.sndbuf.client": 64 * 2**10, "tune.rcvbuf.server": 32 * 2**10}
LEFT_OUT = ("option splice-request", *BUFFERS)
SECTION = re.compile(r"^(global|defaults|frontend|backend|listen)\b\s*(\S*)")
BIND = re.compile(r"^(\s*bind\s+)(\S*):(\d+)(.*)$")
FRONTS = ("http_frontend", "grpc_frontend")


def rebind(config: str, host: str, folder: Path) -> str:
    """Serve's config with the two fronts at `host`, and everything else that listens at a socket in
    `folder` that only the owner can open; with bounded buffers, and able to see who leaves.

    Raises ValueError where a bind is none that is known here: it might be open to all.
    """
    lines = []
    section = name = ""
    for line in config.splitlines():
        if found := SECTION.match(line):
            section, name = found.groups()
        if line.strip().startswith("bind"):
            line = _bound(line, name, host, folder)
        if line.strip().startswith(LEFT_OUT):
            continue
        lines.append(line)
        if line.strip() == "global" and section == "global":
            lines += [f"    {setting} {size}" for setting, size in BUFFERS.items()]
        if line.strip() == "defaults" and section == "defaults":
            lines.append(f"    timeout http-request {HEAD_TIMEOUT_S}s")
    return "\n".join(lines) + "\n"


def _bound(line: str, name: str, host: str, folder: Path) -> str:
    if line.split()[1].startswith(f"unix@{folder}/"):
        return line  # rewritten before
    found = BIND.match(line)
    if found is None:
        raise ValueError(f"haproxy config: {name}: cannot tell where this is bound: {line.strip()}")
    start, _, port, rest = found.groups()
    if name in FRONTS:
        return f"{start}{host}:{port}{rest}"
    return f"{start}unix@{folder / name}.sock mode 600{rest}"


def main(arguments: list[str]) -> None:
    binary, host, folder, *options = arguments
    path = Path(options[options.index("-f") + 1])
    path.write_text(rebind(path.read_text(), host, Path(folder)))
    os.execv(binary, [binary, *options])


def in_pod() -> None:
    """`specdec-haproxy -db -f CONFIG ...`: at all addresses, its sockets beside the config."""
    options = sys.argv[1:]
    binary = installed_haproxy()
    if binary is None:
        raise SystemExit("specdec-haproxy: no haproxy is installed")
    folder = Path(options[options.index("-f") + 1]).parent
    main([str(binary), "0.0.0.0", str(folder), *options])


if __name__ == "__main__":
    main(sys.argv[1:])
