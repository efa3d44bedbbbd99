"""API keys and tenants: who a caller is, and which cached text it may share.

A partition names the prefix cache and n-gram pool of one tenant and one `cache_salt`; no text
crosses from one partition to another.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping

from specdec.errors import UnauthenticatedError

NO_TENANT = ""
DEFAULT_CLASS = "default"


def tenant_of(authorization: str | None, api_keys: Mapping[str, str]) -> str:
    """The tenant of an `Authorization: Bearer KEY` header (HTTP) or metadata entry (gRPC).

    Raises UnauthenticatedError where keys are configured and none fits. Every key is compared in
    full, so that the time taken tells nothing of them.
    """
    if not api_keys:
        return NO_TENANT
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise UnauthenticatedError("an API key is required: Authorization: Bearer KEY")
    found = None
    for key, tenant in api_keys.items():
        if hmac.compare_digest(_bytes(key), _bytes(given.strip())):
            found = tenant
    if found is None:
        raise UnauthenticatedError("the API key is not known")
    return found


def _bytes(text: str) -> bytes:
    """Different text, different bytes, even where it is no valid Unicode."""
    return text.encode(errors="surrogatepass")


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
    """One unambiguous string per (tenant, cache_salt)."""
    return json.dumps([tenant, cache_salt or ""])
