"""Who a peer is: proved before the first message is read, and not believed because it says so.

A server makes a secret when it starts, and a peer's token is a MAC of the peer's id under it. So
a token opens nothing for another id, none has to be kept, and a restart voids all of them. Whoever
owns the server hands tokens out on a way that it trusts: a draft replica over Serve's calls. Where
connections are encrypted, an id also stays with the certificate that first showed its token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from specdec.params import shown
from specdec.speculation.handshake import id_fault

logger = logging.getLogger(__name__)

ID_KEY = "specdec-peer"
TOKEN_KEY = "authorization"
BEARER = "Bearer "
MAX_REMEMBERED_CERTIFICATES = 4096
CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")

Metadata = tuple[tuple[str, str], ...]
Context = grpc.aio.ServicerContext[Any, Any]


class PeerTokens:
    """Tokens of one server. `secret`: at least 32 bytes; None: fresh ones, for this process."""

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is not None and len(secret) < 32:
            raise ValueError("a secret of at least 32 bytes")
        self._secret = secret if secret is not None else secrets.token_bytes(32)

    def issue(self, peer_id: str) -> str:
        """The token of this peer, the same at every call."""
        return hmac.new(self._secret, peer_id.encode(), hashlib.sha256).hexdigest()

    def is_valid(self, peer_id: str, token: str) -> bool:
        """In a time that does not depend on how much of the token is right."""
        return hmac.compare_digest(self.issue(peer_id).encode(), token.encode())


def credentials(peer_id: str, token: str) -> Metadata:
    """What a peer shows with every call."""
    return ((ID_KEY, peer_id), (TOKEN_KEY, BEARER + token))


class Doorkeeper:
    """Lets calls of known peers in, on the loop of its server."""

    def __init__(self, tokens: PeerTokens) -> None:
        self.tokens = tokens
        self._certificates: dict[str, tuple[bytes, ...]] = {}

    async def admit(self, context: Context) -> str:
        """The id of the peer that calls; who proves none is refused, and nothing else is done."""
        shown_by_peer = _text_of(context.invocation_metadata() or ())
        peer_id = shown_by_peer.get(ID_KEY, "")
        token = shown_by_peer.get(TOKEN_KEY, "").removeprefix(BEARER)
        if id_fault(peer_id) is not None or not self.tokens.is_valid(peer_id, token):
            await self._refuse(context, peer_id, grpc.StatusCode.UNAUTHENTICATED, "no valid token")
        if not self._is_wearer(peer_id, _names_of(context.auth_context())):
            what = "this id belongs to another certificate"
            await self._refuse(context, peer_id, grpc.StatusCode.PERMISSION_DENIED, what)
        return peer_id

    def _is_wearer(self, peer_id: str, names: tuple[bytes, ...]) -> bool:
        """The first certificate that an id comes with is the id's; forgotten after many others."""
        if not names:  # not encrypted: there are no certificates
            return True
        owner = self._certificates.setdefault(peer_id, names)
        if len(self._certificates) > MAX_REMEMBERED_CERTIFICATES:
            del self._certificates[next(iter(self._certificates))]
        return owner == names

    async def _refuse(
        self, context: Context, peer_id: str, code: grpc.StatusCode, what: str
    ) -> None:
        logger.info("refused %s as %s: %s", context.peer(), shown(peer_id), what)
        await context.abort(code, what)


def _text_of(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {key: value for key, value in metadata if isinstance(value, str)}


def _names_of(certificate: Mapping[str, Iterable[bytes]]) -> tuple[bytes, ...]:
    """Whose certificate it is, also after its renewal."""
    return tuple(name for key in CERTIFICATE_NAMES for name in certificate.get(key, ()))
