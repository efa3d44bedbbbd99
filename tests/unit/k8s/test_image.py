"""The image: its Dockerfile is sound and pinned as the tests are, and its check of itself works."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.kubernetes import K8S

DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
CHECK = REPOSITORY / "docker" / "check_image.py"
STAGES = ("cpu", "cuda")


def text() -> str:
    return DOCKERFILE.read_text("utf-8")


def stage(name: str) -> str:
    """The instructions of one stage."""
    parts = re.split(r"^FROM ", text(), flags=re.MULTILINE)
    (found,) = [part for part in parts if re.match(rf"\S+ AS {name}\n", part)]
    return found


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint here")
    ran = subprocess.run(
        [hadolint, str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_its_python_is_that_of_the_tests():
    version = re.search(r"^ARG PYTHON=python:(\d+)\.(\d+)\.\d+-slim-\w+$", text(), re.MULTILINE)
    assert (int(version[1]), int(version[2])) == sys.version_info[:2]


@pytest.mark.parametrize("name", STAGES)
def test_every_package_is_pinned_to_what_the_tests_run_with(name):
    build = stage(f"build-{name}")
    assert "pip install --constraint constraints.txt '.[serve,tracing]'" in build
    assert "\"$(grep '^torch==' constraints.txt)\"" in build
    pins = dict(
        line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    )
    for package in ("torch", "ray", "transformers", "grpcio", "protobuf"):
        assert pins[package] == metadata.version(package).partition("+")[0]


@pytest.mark.parametrize("name", STAGES)
def test_it_runs_as_the_user_of_the_pods_and_checks_itself_last(name):
    lines = [line for line in stage(name).splitlines() if line and not line.startswith("#")]
    job = yaml.safe_load((K8S / "base" / "weights-job.yaml").read_text())
    user = job["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    runtime = stage("runtime")
    assert re.findall(r"^USER (\d+):", runtime, re.MULTILINE)[-1] == str(user)
    assert f"--uid {user}" in runtime
    users = [line for line in lines if line.startswith("USER")]
    assert not users or users[-1] == f"USER {user}:{user}"
    assert lines[-1].endswith("python /check_image.py")
    assert lines[-1].startswith("RUN --mount=type=bind,source=docker/check_image.py")


def test_only_what_the_build_needs_is_sent_to_it():
    rules = (REPOSITORY / ".dockerignore").read_text().splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((REPOSITORY / path).exists() for path in kept)
    # What pyproject.toml builds from, what the Dockerfile names, and nothing else.
    assert kept == {
        "LICENSE",
        "README.md",
        "constraints.txt",
        "deployments",
        "docker/check_image.py",
        "protos",
        "pyproject.toml",
        "specdec",
    }


def test_the_check_imports_every_module():
    names = set(runpy.run_path(str(CHECK))["module_names"]())
    files = [
        path.relative_to(REPOSITORY)
        for package in ("specdec", "deployments")
        for path in (REPOSITORY / package).rglob("*.py")
    ]
    expected = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert names == {name for name in expected if not name.endswith("__main__")}
