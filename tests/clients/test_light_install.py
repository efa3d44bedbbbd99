"""`pip install specdec` without extras: the client works, and brings grpcio and protobuf only.

SPECDEC_CLIENT_PYTHON names the interpreter of such an environment (make test-clients makes it).
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from scripted_inference import scripted_server

pytestmark = pytest.mark.clients

PROGRAM = """
import asyncio, json, sys
import specdec
from specdec import AsyncClient, Client

with Client(sys.argv[1]) as client:
    chunks = list(client.generate("hello", max_tokens=4))

async def again():
    async with AsyncClient(sys.argv[1]) as client:
        return [chunk async for chunk in client.generate("hello", max_tokens=4)]

assert asyncio.run(again()) == chunks
text = "".join(chunk.text for chunk in chunks)
print(json.dumps({"text": text, "file": specdec.__file__}))
"""


@pytest.fixture(scope="module")
def client_python() -> str:
    path = os.environ.get("SPECDEC_CLIENT_PYTHON")
    if path is None:
        pytest.skip("run through make test-clients, which makes the environment")
    return path


def run(*command: str, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_environment_holds_no_more_than_it_promises(client_python, tmp_path):
    listed = run(client_python, "-m", "pip", "list", "--format=json", cwd=tmp_path)
    names = {package["name"].lower().replace("_", "-") for package in json.loads(listed.stdout)}
    # typing-extensions is grpcio's own dependency.
    assert names - {"pip", "setuptools", "typing-extensions"} == {"specdec", "grpcio", "protobuf"}


def test_both_clients_generate(client_python, tmp_path):
    with scripted_server() as server:
        result = run(client_python, "-c", PROGRAM, server.address, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["text"] == "one two three four"
    assert "site-packages" in printed["file"]


def test_command_says_what_is_missing(client_python, tmp_path):
    result = run(client_python, "-m", "specdec.cli", "generate", "x", cwd=tmp_path)
    assert result.returncode != 0
    assert "pip install 'specdec[engine]'" in result.stderr
