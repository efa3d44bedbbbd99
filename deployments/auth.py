"""Tenants and partitions: which cached text a caller may share.

A partition names the prefix cache and n-gram pool of one tenant and one `cache_salt`; no text
crosses from one partition to another.
"""

from __future__ import annotations

import hashlib
import json

from specdec.errors import InvalidRequestError

DEFAULT_CLASS = "default"
MAX_CACHE_SALT_CHARS = 1024


def owner_of(partition: str) -> str | None:
    """The tenant of a partition; None for those that are no tenant's, as the health check's."""
    try:
        tenant, _ = json.loads(partition)
    except ValueError:
        return None
    return str(tenant)


def traffic_class_of(partition: str) -> str | None:
    """The class that a partition's requests are counted in: its tenant's, whatever the
    `cache_salt`. Nobody's traffic, as the health check's, is in none."""
    tenant = owner_of(partition)
    return None if tenant is None else tenant or DEFAULT_CLASS


def partition_of(tenant: str, cache_salt: str | None) -> str:
    """One unambiguous string per (tenant, cache_salt). It outlives its request, in what is kept to
    explain it, so it holds no more of the salt than a digest.

    Raises InvalidRequestError for a salt that is too long.
    """
    salt = cache_salt or ""
    if len(salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequestError(
            f"cache_salt: at most {MAX_CACHE_SALT_CHARS} characters, got {len(salt)}",
            field="cache_salt",
        )
    digest = hashlib.sha256(salt.encode(errors="surrogatepass")).hexdigest() if salt else ""
    return json.dumps([tenant, digest])
