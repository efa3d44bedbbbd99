"""API keys: who is who, read from a file or an environment variable, and known by digests alone.

A key is a secret that opens the door; Ray keeps a config's arguments and shows them to whoever may
ask it. So a config names the place where keys are, each gateway replica reads it, and what it holds
from then on are SHA-256 digests.

The text is YAML or JSON, a list with an entry per key:

    - key: sk-of-search         # or sha256: its digest, in hex
      tenant: search
    - sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
      tenant: operations
      operator: true            # may read /live and /metrics
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.settings import GatewaySettings
from specdec.errors import ConfigError, ForbiddenError, UnauthenticatedError
from specdec.yaml_files import parse_yaml, read_yaml

NO_TENANT = ""
MAX_KEYS = 10_000
MAX_KEY_CHARS = 512
# It becomes a label of metrics and stands in log lines. Not `default`, which those without one are
# called.
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")
ENTRY_KEYS = ("key", "sha256", "tenant", "operator")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. An operator may read what tells of all tenants."""

    tenant: str
    is_operator: bool = False


# Where no keys are asked for, everybody is.
ANYBODY = Caller(NO_TENANT, is_operator=True)


class ApiKeys:
    """Callers by the digest of their key. Without any, everybody is welcome."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = dict(callers)

    def __repr__(self) -> str:
        return f"ApiKeys({len(self._callers)} keys)"

    def caller(self, authorization: str | None) -> Caller:
        """Whose an `Authorization: Bearer KEY` header (HTTP) or metadata entry (gRPC) is.

        The look-up is by digest: what its time could tell is of the digest, and no key can be
        found from that. Raises UnauthenticatedError where keys are asked for and none fits.
        """
        if not self._callers:
            return ANYBODY
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise UnauthenticatedError("an API key is required: Authorization: Bearer KEY")
        key = given.strip()
        found = self._callers.get(digest_of(key)) if len(key) <= MAX_KEY_CHARS else None
        if found is None:
            raise UnauthenticatedError("the API key is not known")
        return found

    def operator(self, authorization: str | None) -> Caller:
        """As `caller`. Raises ForbiddenError for one who is no operator."""
        caller = self.caller(authorization)
        if not caller.is_operator:
            raise ForbiddenError("this tells of all tenants: it needs the key of an operator")
        return caller


def digest_of(key: str) -> bytes:
    """Different text, different bytes, even where it is no valid Unicode."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def load_api_keys(settings: GatewaySettings) -> ApiKeys:
    """The keys at the place that the settings name. Raises ConfigError, naming place and entry,
    never what it holds."""
    if settings.api_keys_file is not None:
        field, place = "gateway.api_keys_file", settings.api_keys_file
        return _api_keys(read_yaml(Path(place), field, quote=False), place, field)
    if settings.api_keys_env is not None:
        field, place = "gateway.api_keys_env", settings.api_keys_env
        text = os.environ.get(place, "")
        return _api_keys(parse_yaml(text, place, field, quote=False), place, field)
    return ApiKeys({})


def _api_keys(entries: Any, place: str, field: str) -> ApiKeys:
    if not isinstance(entries, list) or not entries or len(entries) > MAX_KEYS:
        raise ConfigError(f"{field}: {place} must hold a list of 1 to {MAX_KEYS} keys", field=field)
    callers: dict[bytes, Caller] = {}
    for digest, caller in _entries(entries, place, field):
        if digest in callers:
            raise ConfigError(f"{field}: {place}: a key stands there twice", field=field)
        callers[digest] = caller
    return ApiKeys(callers)


def _entries(entries: list[Any], place: str, field: str) -> Iterator[tuple[bytes, Caller]]:
    for number, entry in enumerate(entries, 1):
        try:
            yield _entry(entry)
        except ValueError as error:
            raise ConfigError(f"{field}: {place}: entry {number}: {error}", field=field) from None


def _entry(entry: Any) -> tuple[bytes, Caller]:
    if not isinstance(entry, dict) or not all(name in ENTRY_KEYS for name in entry):
        raise ValueError(f"must be a mapping with the keys {', '.join(ENTRY_KEYS)}")
    key, digest, tenant = entry.get("key"), entry.get("sha256"), entry.get("tenant")
    is_operator = entry.get("operator", False)
    if (key is None) == (digest is None):
        raise ValueError("give either key or sha256")
    if not isinstance(tenant, str) or TENANT.fullmatch(tenant) is None or tenant == "default":
        raise ValueError(
            "tenant: must be 1 to 64 letters, digits, dots, dashes or underscores, not 'default'"
        )
    if not isinstance(is_operator, bool):
        raise ValueError("operator: must be true or false")
    caller = Caller(tenant, is_operator)
    if key is None:
        if not isinstance(digest, str) or DIGEST.fullmatch(digest) is None:
            raise ValueError("sha256: must be 64 hexadecimal digits, in quotes if all are decimal")
        return bytes.fromhex(digest), caller
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS or key != key.strip():
        raise ValueError(
            f"key: must be text of 1 to {MAX_KEY_CHARS} characters with no space around it; "
            "numbers in quotes"
        )
    return digest_of(key), caller
