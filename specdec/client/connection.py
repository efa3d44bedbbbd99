"""What both clients share: channel options, call metadata, default deadlines."""

from __future__ import annotations

from typing import Final

from specdec.errors import InvalidRequestError, SpecdecError

GENERATE_TIMEOUT_S: Final = 600.0
CALL_TIMEOUT_S: Final = 30.0

CHANNEL_OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # A peer that vanished without a word is noticed while a stream waits for it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]

Metadata = tuple[tuple[str, str], ...]


def checked_address(address: str) -> str:
    """The address, if gRPC may be given it. Raises InvalidRequestError (field `address`)."""
    is_text = isinstance(address, str) and address.isprintable() and bool(address.strip())
    if not is_text:
        raise InvalidRequestError(
            f"address: must be host:port, such as localhost:9000, got {address!r:.100}",
            field="address",
        )
    return address


def call_metadata(api_key: str | None, application: str | None) -> Metadata:
    """Headers of a call: the API key, and the Ray Serve application where there are several."""
    metadata: Metadata = ()
    if api_key is not None:
        metadata += (("authorization", f"Bearer {api_key}"),)
    if application is not None:
        metadata += (("application", application),)
    return metadata


def cut_short() -> SpecdecError:
    """A stream that ended without its last message."""
    return SpecdecError("the server ended the stream before the generation was finished")
