"""What a Ray that starts here finds in its environment: a token, an interface, an ingress."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from deployments import ray_environment
from deployments.ray_environment import Front, choose_ingress, ensure_token, variables
from specdec.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in (
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_SERVE_ENABLE_HA_PROXY",
        "RAY_SERVE_HAPROXY_BINARY_PATH",
        "RAY_worker_niceness",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def binary(monkeypatch, tmp_path) -> Path:
    path = tmp_path / "bin" / "haproxy"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(path))
    return path


@pytest.fixture
def no_binary(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_environment, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))


def front(ingress="python", host="127.0.0.1", longest_request_s=600.0):
    return Front(ingress, host, 9000, longest_request_s)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestToken:
    def test_is_on_and_made_once_for_its_owner_alone(self, tmp_path):
        assert variables(front(), "127.0.0.1", tmp_path)["RAY_AUTH_MODE"] == "token"
        path = tmp_path / "home" / ".ray" / "auth_token"
        token = path.read_text()
        assert len(token) == 64
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        variables(front(), "127.0.0.1", tmp_path)
        assert path.read_text() == token

    def test_one_that_others_could_read_is_closed_to_them(self, tmp_path):
        path = tmp_path / "auth_token"
        path.write_text("theirs")
        path.chmod(0o644)
        ensure_token(path)
        assert (path.read_text(), mode(path)) == ("theirs", 0o600)

    @pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
    def test_of_the_user_is_respected(self, monkeypatch, tmp_path, name):
        monkeypatch.setenv(name, "given")
        assert name not in variables(front(), "127.0.0.1", tmp_path)
        assert not (tmp_path / "home").exists()

    def test_goes_only_where_the_user_says_so(self, monkeypatch, tmp_path):
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert variables(front(), "127.0.0.1", tmp_path)["RAY_AUTH_MODE"] == "disabled"


class TestInterface:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
    def test_loopback(self, tmp_path, host):
        chosen = variables(front(), host, tmp_path)
        assert chosen["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert chosen[ray_environment.ONLY_LOOPBACK] == "1"

    @pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "node-1"])
    def test_another(self, tmp_path, host):
        chosen = variables(front(), host, tmp_path)
        assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in chosen
        assert ray_environment.ONLY_LOOPBACK not in chosen

    @pytest.mark.parametrize(
        ("host", "address"), [("0.0.0.0", "0.0.0.0:9000"), ("::1", "[::1]:9000")]
    )
    def test_host_governs_grpc_behind_the_python_proxy(self, tmp_path, host, address):
        chosen = variables(front(host=host), "127.0.0.1", tmp_path)
        assert chosen[ray_environment.GRPC_ADDRESS] == address


class TestIngress:
    def test_auto_is_haproxy_where_it_is(self, binary):
        assert choose_ingress("auto", {}) == "haproxy"

    def test_auto_is_python_where_it_is_not(self, no_binary):
        assert choose_ingress("auto", {}) == "python"

    def test_auto_obeys_the_environment(self, binary):
        assert choose_ingress("auto", {"RAY_SERVE_ENABLE_HA_PROXY": "0"}) == "python"

    def test_haproxy_must_be_there(self, no_binary):
        with pytest.raises(ConfigError, match="no haproxy is installed"):
            choose_ingress("haproxy", {})

    def test_python_as_asked(self, binary, tmp_path):
        assert choose_ingress("python", {}) == "python"
        assert variables(front(), "127.0.0.1", tmp_path)["RAY_SERVE_ENABLE_HA_PROXY"] == "0"

    def test_haproxy_keeps_its_files_to_itself(self, binary, tmp_path):
        folder = tmp_path / "own"
        chosen = variables(front("haproxy", host="0.0.0.0"), "127.0.0.1", folder)
        assert mode(folder) == 0o700
        files = [v for k, v in chosen.items() if k.startswith("RAY_SERVE_HAPROXY_") and "/" in v]
        assert len(files) == 6
        assert all(Path(name).is_relative_to(folder) for name in files)
        starter = Path(chosen["RAY_SERVE_HAPROXY_BINARY_PATH"])
        assert mode(starter) == 0o700
        assert f"deployments.haproxy_start {binary} 0.0.0.0 {folder} " in starter.read_text()

    def test_a_reload_leaves_the_longest_request_alone(self, binary, tmp_path):
        chosen = variables(front("haproxy", longest_request_s=1800.0), "127.0.0.1", tmp_path)
        assert int(chosen["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > 1800

    def test_two_servers_of_one_machine_share_no_port(self, binary, tmp_path):
        ports = [
            variables(front("haproxy"), "127.0.0.1", tmp_path)[
                f"RAY_SERVE_FALLBACK_PROXY_{protocol}_PORT"
            ]
            for protocol in ("HTTP", "GRPC")
        ]
        assert len({*ports, "8500", "9500"}) == 4


def test_workers_are_as_nice_as_the_server(monkeypatch, tmp_path):
    assert variables(front(), "127.0.0.1", tmp_path)["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "5")
    assert variables(front(), "127.0.0.1", tmp_path)["RAY_worker_niceness"] == "5"
