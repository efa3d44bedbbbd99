"""Where a server of ours listens, and what others are told of it."""

from __future__ import annotations

EVERYWHERE = ("0.0.0.0", "::")


def draft_hosts(host: str | None, node_ip: str) -> tuple[str, str]:
    """(where a draft listens, where targets are told to find it). `host` None: only at the address
    by which Ray knows the node, since that is the one that targets dial."""
    if host is None:
        return node_ip, node_ip
    return host, node_ip if host in EVERYWHERE else host


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
