"""Where HAProxy's ports are bound, in the config that this Ray's template gives."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from deployments.haproxy_start import in_pod, rebind
from deployments.ray_environment import installed_haproxy

FOLDER = Path("/run/own")
# The template's own text, its fronts filled in as Serve does for `host` 127.0.0.1.
CONFIG = (
    HAPROXY_CONFIG_TEMPLATE.replace("{{ config.frontend_host }}", "127.0.0.1")
    .replace("{{ config.frontend_port }}", "8000")
    .replace("{{ config.grpc_frontend_host }}", "127.0.0.1")
    .replace("{{ config.grpc_frontend_port }}", "9000")
    .replace("{{ config.metrics_port }}", "9101")
    .replace("{{ config.stats_port }}", "8404")
)


def binds(config):
    return [line.split()[1] for line in config.splitlines() if line.strip().startswith("bind")]


def test_fronts_are_at_the_host_and_nothing_else_at_a_port():
    assert sorted(binds(CONFIG)) == ["*:8404", "127.0.0.1:8000", "127.0.0.1:9000", ":9101"]
    assert binds(rebind(CONFIG, "10.0.0.5", FOLDER)) == [
        "unix@/run/own/prometheus.sock",
        "10.0.0.5:8000",
        "10.0.0.5:9000",
        "unix@/run/own/stats.sock",
    ]


def test_http_2_stays_with_the_grpc_front():
    lines = rebind(CONFIG, "127.0.0.1", FOLDER).splitlines()
    (line,) = [line for line in lines if ":9000" in line]
    assert line.strip() == "bind 127.0.0.1:9000 proto h2"


def test_twice_is_once():
    once = rebind(CONFIG, "127.0.0.1", FOLDER)
    assert binds(rebind(once, "127.0.0.1", FOLDER)) == binds(once)


def test_the_head_of_a_request_has_a_deadline_of_its_own():
    lines = rebind(CONFIG, "127.0.0.1", FOLDER).splitlines()
    assert lines[lines.index("defaults") + 1].strip() == "timeout http-request 30s"


def test_what_waits_for_a_stopped_reader_is_bounded():
    once = rebind(CONFIG, "127.0.0.1", FOLDER)
    for config in (once, rebind(once, "127.0.0.1", FOLDER)):
        lines = [line.strip() for line in config.splitlines()]
        assert lines[0] == "global"
        assert lines[1:3] == ["tune.sndbuf.client 65536", "tune.rcvbuf.server 32768"]
        assert sum("buf.client" in line or "buf.server" in line for line in lines) == 2


def test_requests_are_not_forwarded_by_the_kernel():
    assert "option splice-request" in CONFIG
    assert "splice-request" not in rebind(CONFIG, "127.0.0.1", FOLDER)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(ValueError, match="debug: cannot tell where this is bound: bind fd@3"):
        rebind("frontend debug\n    bind fd@3\n", "127.0.0.1", FOLDER)


def test_becomes_the_binary_with_its_arguments(tmp_path):
    config = tmp_path / "haproxy.cfg"
    config.write_text("defaults\nlisten stats\n  bind *:8404\n")
    binary = tmp_path / "haproxy"
    binary.write_text('#!/bin/sh\necho $$ "$@"\n')
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "deployments.haproxy_start"]
    process = subprocess.Popen(
        [*command, binary, "127.0.0.1", tmp_path, "-db", "-f", config, "-sf", "7"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    output, _ = process.communicate(timeout=30)
    assert output.split() == [str(process.pid), "-db", "-f", str(config), "-sf", "7"]
    assert binds(config.read_text()) == [f"unix@{tmp_path}/stats.sock"]


def test_in_a_pod_it_is_at_all_addresses_and_its_sockets_are_beside_the_config(
    tmp_path, monkeypatch
):
    config = tmp_path / "haproxy.cfg"
    config.write_text("frontend http_frontend\n  bind [::]:8000\nlisten stats\n  bind *:8404\n")
    became = []
    monkeypatch.setattr(os, "execv", lambda binary, arguments: became.append((binary, arguments)))
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/opt/specdec/bin/specdec-haproxy")
    monkeypatch.setattr(sys, "argv", ["specdec-haproxy", "-db", "-f", str(config)])
    in_pod()
    binary = str(installed_haproxy())  # never itself
    assert became == [(binary, [binary, "-db", "-f", str(config)])]
    assert binds(config.read_text()) == ["0.0.0.0:8000", f"unix@{tmp_path}/stats.sock"]


def test_the_image_has_what_the_pods_start():
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["specdec-haproxy"] == "deployments.haproxy_start:in_pod"
    service = Path("k8s/base/rayservice.yaml").read_text()
    assert "RAY_SERVE_HAPROXY_BINARY_PATH, value: /opt/specdec/bin/specdec-haproxy}" in service
    assert (
        "COPY --from=build-cpu /opt/specdec /opt/specdec" in Path("docker/Dockerfile").read_text()
    )
