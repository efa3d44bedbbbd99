"""The operators' page: its two routes, its files, read once, and the headers they leave with.

Knows nothing of what the page shows: its scripts ask `/live` and the OpenAI endpoints themselves.
All its links are relative, since Serve may mount the application below a prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Kept, and asked for again: an upgrade shows at once and costs a 304 otherwise.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent; `etag` names its content."""

    body: bytes
    media_type: str
    etag: str


def read_page(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Path below `folder`, with slashes -> file; what no browser needs is left out."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[str, PageFile]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in MEDIA_TYPES:
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            name = path.relative_to(folder).as_posix()
            yield name, PageFile(body, MEDIA_TYPES[path.suffix], etag)


ASSETS = read_page()
# Its links start from the application's root: below /page/ they would lead nowhere.
PAGE = ASSETS.pop(INDEX)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """The page itself."""
    return _response(PAGE, request.headers)


@router.get("/page/{name:path}")
async def asset(request: Request, name: str) -> Response:
    """What the page asks for."""
    if name not in ASSETS:
        raise HTTPException(404)
    return _response(ASSETS[name], request.headers)


def _response(file: PageFile, request_headers: Mapping[str, str]) -> Response:
    """The file, or 304 where the browser has it already."""
    headers = {**HEADERS, "etag": file.etag}
    if file.etag in request_headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
