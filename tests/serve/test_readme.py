"""README's requests, run as printed: only addresses, the model and the key are this test's own."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.readme import blocks

TIMEOUT_S = 100
CURLS = [line for b in blocks("bash") for line in re.split(r"\n(?=curl)", b.code.strip())]
PYTHONS = [b.code for b in blocks("python")]


def title(code: str) -> str:
    return re.sub(r"\W+", "-", code)[-40:]


@pytest.fixture
def adapt(service, tiny_llama, monkeypatch):
    """README's text with the demo's addresses and model exchanged for the test application's."""
    monkeypatch.setenv("NO_PROXY", "*")

    def exchange(code: str) -> str:
        code = code.replace('ModelConfig(model="smollm2"', f'ModelConfig(model="{tiny_llama}"')
        code = code.replace('"smollm2"', '"tiny"').replace("/smollm2", "/tiny")
        code = code.replace("http://localhost:8000", service.url)
        code = code.replace('api_key="unused"', 'api_key="key-a"')
        code = code.replace("key-of-search", "key-a")
        client = f'Client("{service.address}", api_key="key-a", application="{service.name}"'
        return code.replace('Client("localhost:9000"', client)

    return exchange


@pytest.mark.parametrize("line", CURLS, ids=title)
def test_curl(adapt, line):
    line = adapt(line)
    assert "localhost" not in line
    if "uthorization" not in line:
        line = line.replace("curl ", "curl -H 'Authorization: Bearer key-operator' ", 1)
    line = line.replace("curl ", f"curl --fail-with-body --show-error -m {TIMEOUT_S} ", 1)
    result = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=TIMEOUT_S + 10, check=False
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    assert result.stdout.strip()
    assert '"error":' not in result.stdout


@pytest.mark.parametrize("code", PYTHONS, ids=title)
def test_python(adapt, capsys, monkeypatch, code):
    key = 'httpx.Client(headers={"authorization": "Bearer key-a"}, '
    code = adapt(code).replace("httpx.Client(", key)
    assert "localhost" not in code
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    if "print" in code:
        assert capsys.readouterr().out.strip()
