"""The environment of a Ray that a test process starts. Ray reads it at import: not here."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deployments.ray_environment import LOOPBACK, Front, Ingress, free_ports, variables

LONGEST_REQUEST_S = 600.0


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int


def prepare(ingress: Ingress) -> tuple[Ports, Path]:
    """Set it; returns the fronts' ports and the folder that is to be removed at the end."""
    ports = Ports(*free_ports(2))
    folder = Path(tempfile.mkdtemp(prefix="specdec-", dir="/tmp"))
    front = Front(ingress, LOOPBACK, ports.grpc, LONGEST_REQUEST_S)
    os.environ.update(variables(front, LOOPBACK, folder))
    return ports, folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
