"""How much a JSON text may hold, found before it is parsed.

A parser makes an object per value, hundreds of bytes of it for two that were sent, and a schema
that does not fit makes an error for each; both hold the interpreter, and with it every stream of
this process, until they are done. Counting what stands outside of strings is a few passes over the
bytes. Depth is the parser's own to bound: it gives up at 200.
"""

from __future__ import annotations

from specdec.errors import InvalidRequestError

# Conversations and tools need a few thousand of either.
MAX_STRINGS = 2**15
MAX_CONTAINERS = 2**14
# Token ids are what is sent in great numbers: a third of a million in 4 MiB. To parse and check so
# many takes about as long as a step of a large model.
BYTES_PER_VALUE = 12
MIN_VALUES = 2**16


def check_json(raw: bytes, max_bytes: int) -> None:
    """Raises InvalidRequestError where a text of at most `max_bytes` holds more values than it may.

    What comes before the first fault of a text that is no JSON is counted right, and a parser reads
    no further.
    """
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    _check("strings", plain.count(b'"') // 2, MAX_STRINGS)
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    _check("arrays and objects", containers, MAX_CONTAINERS)
    values = outside.count(b",") + containers
    _check("values", values, max(MIN_VALUES, max_bytes // BYTES_PER_VALUE))


def _check(what: str, given: int, limit: int) -> None:
    if given > limit:
        raise InvalidRequestError(f"body: holds {given} {what}, more than {limit}", field="body")
