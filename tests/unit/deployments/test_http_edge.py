"""Routes as HTTP clients meet them: HEAD, other origins, packed bodies, paths that are missing."""

from __future__ import annotations

import codecs
import gzip
import json
import tracemalloc
from types import SimpleNamespace

import httpx
import pytest
import zstandard
from fastapi import FastAPI

from deployments import body_encoding, gateway
from deployments.http_edge import Cors
from deployments.settings import GatewaySettings
from tests.scripted_target import ScriptedTarget, handlers_of

ORIGIN = "https://chat.example.org"
LIMIT = 20_000
BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture
def served(tiny_tokenizer, monkeypatch):
    """The whole application without Ray: its one gateway answers from a script."""
    target = ScriptedTarget(tiny_tokenizer, [70, 71, 72, 73])
    handlers = handlers_of(tiny_tokenizer, target, max_body_bytes=LIMIT)
    instance = SimpleNamespace(_http=handlers, allowed_origins=(), target=target)
    context = SimpleNamespace(servable_object=instance)
    for module in ("ray.serve", "ray.serve._private.http_util"):
        monkeypatch.setattr(f"{module}.get_replica_context", lambda: context, raising=False)
    monkeypatch.setattr("ray.serve.context._get_internal_replica_context", lambda: context)
    return instance


@pytest.fixture
async def client(served):
    gateway.http_app.middleware_stack = None  # built anew, so that origins are asked for again
    transport = httpx.ASGITransport(gateway.http_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http
    gateway.http_app.middleware_stack = None


def get_paths():
    paths = gateway.http_app.openapi()["paths"]
    return [p for p, operations in paths.items() if "get" in operations and "{" not in p]


@pytest.mark.parametrize("path", ["/v1/models/tiny", "/version", "/"])
async def test_head_is_get_without_the_body(client, path, monkeypatch):
    got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-length"] == got.headers["content-length"] != "0"
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_head_of_what_only_takes_a_post(client):
    head = await client.head("/v1/completions")
    assert (head.status_code, head.content) == (405, b"")


MISSING = [
    ("GET", "/v1/completions", 405),
    ("DELETE", "/v1/models", 405),
    ("OPTIONS", "/v1/chat/completions", 405),
    ("PUT", "/tokenize", 405),
    ("POST", "/v1/models/tiny", 405),
    ("POST", "/health", 405),
    ("GET", "/v1/nothing", 404),
    ("POST", "/v1/embeddings", 404),
    ("GET", "/v1", 404),
    ("GET", "/page/none.js", 404),
    ("GET", "/docs", 404),
    ("PROPFIND", "/", 405),
    ("GET", "/v1/models/other", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), MISSING)
async def test_what_is_not_there_has_the_body_of_an_error(client, method, path, status):
    response = await client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")
    assert ("allow" in response.headers) == (status == 405)


async def test_the_list_of_models_also_with_a_slash(client):
    assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()
    assert (await client.get("/v1/models/")).json()["object"] == "list"


PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


async def test_other_origins_are_not_let_in_unless_told(client):
    assert (await client.options("/v1/completions", headers=PREFLIGHT)).status_code == 405
    plain = await client.get("/version", headers={"origin": ORIGIN})
    assert "access-control-allow-origin" not in plain.headers


@pytest.mark.parametrize("origins", [(ORIGIN,), ("*",)])
async def test_an_allowed_origin_may_ask(served, client, origins):
    served.allowed_origins = origins
    preflight = await client.options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    allowed = origins[0]
    assert preflight.headers["access-control-allow-origin"] == allowed
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    for response in (
        await client.post("/v1/completions", json=BODY, headers={"origin": ORIGIN}),
        await client.post("/v1/completions", json={}, headers={"origin": ORIGIN}),
    ):
        assert response.headers["access-control-allow-origin"] == allowed
        assert "access-control-allow-credentials" not in response.headers


async def test_another_origin_than_the_allowed_one_may_not(served, client):
    served.allowed_origins = (ORIGIN,)
    stranger = {**PREFLIGHT, "origin": "https://elsewhere.example"}
    refused = await client.options("/v1/completions", headers=stranger)
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("origin", ["chat.example.org", "https://a/b", "https://a/", "a b", ""])
def test_an_origin_is_written_as_browsers_do(origin):
    with pytest.raises(ValueError, match="cors_allow_origins"):
        GatewaySettings(cors_allow_origins=(origin,))


async def test_origins_are_asked_for_once():
    asked = []
    cors = Cors(FastAPI(), lambda: asked.append(1) or ())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(cors), base_url="http://test"
    ) as http:
        await http.get("/")
        await http.get("/")
    assert asked == [1]


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
}


@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8], ids=["plain", "mark"])
@pytest.mark.parametrize("encoding", PACKERS)
async def test_a_packed_body_is_read(client, encoding, bom):
    packed = PACKERS[encoding](bom + json.dumps(BODY).encode())
    response = await client.post(
        "/v1/completions", content=packed, headers={"content-encoding": encoding}
    )
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 2


async def test_members_and_frames_are_joined(client):
    first, second = b'{"prompt": "a", ', b'"max_tokens": 2}'
    for encoding in ("gzip", "zstd"):
        packed = PACKERS[encoding](first) + PACKERS[encoding](second)
        response = await client.post(
            "/v1/completions", content=packed, headers={"content-encoding": encoding}
        )
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_body_that_unpacks_to_more_than_the_limit_is_refused(client, encoding):
    at_most = json.dumps({"prompt": "a", "max_tokens": 2, "user": ""}).encode()
    for size, status in ((LIMIT, 200), (LIMIT + 1, 400)):
        whole = at_most[:-2] + b"x" * (size - len(at_most)) + at_most[-2:]
        response = await client.post(
            "/v1/completions",
            content=PACKERS[encoding](whole),
            headers={"content-encoding": encoding},
        )
        assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == "body"


@pytest.mark.parametrize("unpack", [body_encoding._gunzip, body_encoding._unzstd])
def test_a_bomb_is_not_unpacked(unpack):
    """A few KB that stand for 200 MB take no more memory than a body of the largest size."""
    encoding = "gzip" if unpack is body_encoding._gunzip else "zstd"
    bomb = PACKERS[encoding](bytes(200_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(Exception, match="larger than"):
            unpack(bomb, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


BROKEN = {
    "gzip": [b"no", gzip.compress(b"{}" * 100)[:-9], gzip.compress(b"{}") + b"rest"],
    "zstd": [b"no zstd", PACKERS["zstd"](json.dumps(BODY).encode())[:-4]],
}


@pytest.mark.parametrize(
    ("encoding", "content"),
    [(name, each) for name, broken in BROKEN.items() for each in broken],
    ids=[f"{name} {i}" for name, broken in BROKEN.items() for i in range(len(broken))],
)
async def test_what_is_not_packed_as_it_says_is_refused(client, encoding, content):
    response = await client.post(
        "/v1/completions", content=content, headers={"content-encoding": encoding}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "body"


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 5000])
async def test_an_unknown_encoding_is_named(client, encoding):
    response = await client.post(
        "/v1/completions", content=b"{}", headers={"content-encoding": encoding}
    )
    assert response.status_code == 415
    assert encoding[:40] in response.json()["error"]["message"]
    assert len(response.json()["error"]["message"]) < 200
    assert "gzip" in response.headers["accept-encoding"]
