"""The content encoding of HTTP bodies: gzip and zstd, unpacked to the limit and never beyond.

A few bytes that stand for gigabytes cost as much as a body of the largest size.
"""

from __future__ import annotations

import asyncio
import codecs
import zlib
from collections.abc import Callable, Mapping

import zstandard
from fastapi import HTTPException

from specdec.errors import InvalidRequestError

# What a zstd decoder may keep of a text: RFC 8878 asks every decoder for this much.
MAX_ZSTD_WINDOW = 8 * 2**20
_GZIP = 16 + zlib.MAX_WBITS


def content_encoding(headers: Mapping[str, str]) -> str:
    """The encoding of a body, "" for none; asked before the body is read.

    Raises HTTPException 415 for one that is not known here.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return ""
    if encoding not in UNPACKERS:
        raise HTTPException(
            415,
            f"content-encoding {encoding[:40]!r} is not known here; known: {', '.join(UNPACKERS)}",
            {"accept-encoding": ", ".join(UNPACKERS)},
        )
    return encoding


async def plain_text(raw: bytes, encoding: str, limit: int) -> bytes:
    """A body without its content encoding and byte order mark.

    Raises InvalidRequestError where it is no such encoding, or of more than `limit` bytes.
    """
    if encoding:
        # In a thread: megabytes take milliseconds, and other streams wait.
        raw = await asyncio.to_thread(UNPACKERS[encoding], raw, limit)
    return raw.removeprefix(codecs.BOM_UTF8)


def _gunzip(raw: bytes, limit: int) -> bytes:
    """All members of a gzip file."""
    text = b""
    try:
        while raw:
            member = zlib.decompressobj(_GZIP)
            text += member.decompress(raw, limit + 1 - len(text))
            if len(text) > limit:
                raise _too_large(limit)
            if not member.eof:
                raise zlib.error("it ends too early")
            raw = member.unused_data
    except zlib.error as error:
        raise _not_packed("gzip", error) from None
    return text


def _unzstd(raw: bytes, limit: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(raw, read_across_frames=True) as reader:
            text = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise _not_packed("zstd", error) from None
    if len(text) > limit:
        raise _too_large(limit)
    return text


UNPACKERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "zstd": _unzstd,
}


def _too_large(limit: int) -> InvalidRequestError:
    return InvalidRequestError(f"body: is larger than {limit} bytes", field="body")


def _not_packed(encoding: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"body: is not valid {encoding}: {error}", field="body")
