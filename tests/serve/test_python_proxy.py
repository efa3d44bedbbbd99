"""Serve's Python proxy, for where no HAProxy can be had: answers and errors are the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.served_command import own_environment

LIMIT_S = 200


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 40)
def test_http_and_grpc_through_the_python_proxy(tiny_llama):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.serve.python_proxy_check", str(tiny_llama)],
        cwd=REPOSITORY,
        env=own_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    # Ray may have the last word.
    told = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    seen = json.loads(told[-1])
    assert seen["haproxy_processes"] == 0
    assert seen["http"]
    assert seen["http"] == seen["http_stream"] == seen["grpc"] == seen["grpc_stream"]
    assert seen["http_done"] == "[DONE]"
    assert seen["http_error"] == [400, "max_tokens"]
    assert seen["grpc_messages"] > 1
    assert seen["grpc_fields"] == ["max_tokens", "max_tokens"]
