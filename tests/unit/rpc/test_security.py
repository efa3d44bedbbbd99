"""Encrypted connections between target and draft, with the certificates that the pods make."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specdec.errors import ConfigError
from specdec.rpc import security
from specdec.rpc.credentials import PeerTokens, credentials
from specdec.rpc.draft_server import DraftServer
from specdec.v1 import draft_pb2, draft_pb2_grpc
from tests.conftest import REPOSITORY
from tests.unit.rpc.scripted_draft import ScriptedDraft

ISSUE = REPOSITORY / "k8s" / "components" / "tls" / "issue.sh"
TIMEOUT_S = 5.0
HEAD = "specdec-abcde-head-svc.specdec.svc.cluster.local"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


def run(*command: str, **variables: str) -> None:
    environment = {**os.environ, **variables}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=30)


def make_authority(folder: Path) -> Path:
    """tls.crt and tls.key, as cert-manager puts them into its Secret."""
    folder.mkdir()
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    paths = ["-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"]
    run(*request, "-nodes", "-subj", "/CN=authority", "-days", "2", *paths)
    return folder


def issue(authority: Path, folder: Path, address: str = "127.0.0.1", role: str = "draft") -> Path:
    """What the init container of a pod makes."""
    folder.mkdir()
    run(
        *("bash", str(ISSUE)),
        AUTHORITY=str(authority),
        OUTPUT=str(folder),
        POD_IP=address,
        ROLE=role,
        FQ_RAY_IP=HEAD,
    )
    return folder


@pytest.fixture(scope="module")
def pods(tmp_path_factory) -> dict[str, Path]:
    """Certificates of two pods of one fleet, and of one pod of another fleet."""
    root = tmp_path_factory.mktemp("certificates")
    ours, theirs = make_authority(root / "ours"), make_authority(root / "theirs")
    return {
        "authority": ours,
        "target": issue(ours, root / "target"),
        "draft": issue(ours, root / "draft"),
        "head": issue(ours, root / "head", "10.1.2.3", "head"),
        "stranger": issue(theirs, root / "stranger"),
    }


def wear(monkeypatch, pod: Path) -> None:
    """The environment of a pod of overlay `mtls`."""
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", f"{pod}/tls.crt")
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", f"{pod}/tls.key")
    monkeypatch.setenv("RAY_TLS_CA_CERT", f"{pod}/ca.crt")


async def serve() -> tuple[grpc.aio.Server, str]:
    """A server with health alone, and its address."""
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = security.add_port(server, "127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def is_served(channel: grpc.aio.Channel) -> bool:
    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_pods_of_one_fleet_speak_to_each_other_and_to_nobody_else(pods, monkeypatch):
    wear(monkeypatch, pods["draft"])
    server, address = await serve()
    try:
        wear(monkeypatch, pods["target"])
        assert await is_served(security.open_channel(address))
        wear(monkeypatch, pods["stranger"])
        assert not await is_served(security.open_channel(address))
        # Trusts the server, and shows no certificate of its own.
        authority = grpc.ssl_channel_credentials((pods["draft"] / "ca.crt").read_bytes())
        assert not await is_served(grpc.aio.secure_channel(address, authority))
        assert not await is_served(grpc.aio.insecure_channel(address))
    finally:
        await server.stop(0)


async def test_a_certificate_for_another_address_is_refused(pods, tmp_path, monkeypatch):
    authority = make_authority(tmp_path / "authority")
    wear(monkeypatch, issue(authority, tmp_path / "ours"))
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(elsewhere(authority, tmp_path) / "tls.crt"))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(tmp_path / "elsewhere" / "tls.key"))
    server, address = await serve()
    try:
        wear(monkeypatch, tmp_path / "ours")
        assert not await is_served(security.open_channel(address))
    finally:
        await server.stop(0)


def elsewhere(authority: Path, root: Path) -> Path:
    """A pod's certificate that names no address but that of a machine which is not this one."""
    folder = issue(authority, root / "elsewhere", "192.0.2.7")
    # The script names the loopback address too, for Ray's calls within a pod: sign without it.
    extensions = root / "extensions"
    extensions.write_text("subjectAltName=IP:192.0.2.7\nextendedKeyUsage=serverAuth,clientAuth\n")
    request, key = str(root / "request"), str(folder / "tls.key")
    run("openssl", "req", "-new", "-key", key, "-subj", "/CN=x", "-out", request)
    signer = ["-CA", f"{authority}/tls.crt", "-CAkey", f"{authority}/tls.key", "-set_serial", "7"]
    output = ["-extfile", str(extensions), "-out", f"{folder}/tls.crt"]
    run("openssl", "x509", "-req", "-in", request, *signer, *output)
    return folder


async def test_without_the_variable_nothing_is_encrypted(monkeypatch):
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    server, address = await serve()
    try:
        assert await is_served(grpc.aio.insecure_channel(address))
        assert await is_served(security.open_channel(address))
    finally:
        await server.stop(0)


@pytest.mark.parametrize("value", [None, "", "/nowhere/tls.key"])
async def test_a_certificate_that_cannot_be_read_is_told_by_its_variable(pods, monkeypatch, value):
    wear(monkeypatch, pods["draft"])
    if value is None:
        monkeypatch.delenv("RAY_TLS_SERVER_KEY")
    else:
        monkeypatch.setenv("RAY_TLS_SERVER_KEY", value)
    with pytest.raises(ConfigError, match="RAY_TLS_SERVER_KEY") as caught:
        security.open_channel("127.0.0.1:1")
    assert caught.value.field == "RAY_TLS_SERVER_KEY"


def test_only_the_head_has_the_heads_name(pods):
    assert {f"DNS:{HEAD}", "DNS:specdec-abcde-head-svc"} <= set(names(pods["head"]))
    assert "IP Address:10.1.2.3" in names(pods["head"])
    assert names(pods["draft"]) == ["IP Address:127.0.0.1", "IP Address:127.0.0.1", "DNS:localhost"]


def names(pod: Path) -> list[str]:
    command = ["openssl", "x509", "-in", f"{pod}/tls.crt", "-noout", "-ext", "subjectAltName"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return ran.stdout.splitlines()[1].strip().split(", ")


async def served_by_draft(tokens: PeerTokens) -> tuple[DraftServer, str]:
    server = DraftServer(ScriptedDraft(), tokens=tokens)
    return server, f"127.0.0.1:{await server.start('127.0.0.1:0')}"


async def ask_info(address: str, shown) -> grpc.StatusCode:
    async with security.open_channel(address) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        try:
            await stub.Info(draft_pb2.InfoRequest(), timeout=TIMEOUT_S, metadata=shown)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_a_token_stays_with_the_certificate_that_showed_it_first(
    monkeypatch, pods, tmp_path
) -> None:
    """Who took a target's token is not that target, and a renewed certificate still is."""
    tokens = PeerTokens()
    shown = credentials("target-1", tokens.issue("target-1"))
    wear(monkeypatch, pods["draft"])
    server, address = await served_by_draft(tokens)
    wear(monkeypatch, pods["target"])
    assert await ask_info(address, shown) == grpc.StatusCode.OK
    wear(monkeypatch, pods["head"])
    assert await ask_info(address, shown) == grpc.StatusCode.PERMISSION_DENIED
    own = credentials("head", tokens.issue("head"))
    assert await ask_info(address, own) == grpc.StatusCode.OK
    wear(monkeypatch, issue(pods["authority"], tmp_path / "renewed"))
    assert await ask_info(address, shown) == grpc.StatusCode.OK
    await server.stop(0)
