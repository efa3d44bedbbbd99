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
from packaging.requirements import Requirement

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


def test_its_base_is_named_by_digest_and_there_is_no_default():
    assert re.search(r"^ARG PYTHON_DIGEST$", text(), re.MULTILINE)
    bases = re.findall(r"^FROM (\S+) AS (?:build|runtime)$", text(), re.MULTILINE)
    assert bases == ["${PYTHON}@${PYTHON_DIGEST}"] * 2


def test_its_python_is_that_of_the_tests():
    version = re.search(r"^ARG PYTHON=python:(\d+)\.(\d+)\.\d+-slim-\w+$", text(), re.MULTILINE)
    assert (int(version[1]), int(version[2])) == sys.version_info[:2]


@pytest.mark.parametrize("name", STAGES)
def test_every_package_is_pinned_to_what_the_tests_run_with(name):
    stages = (stage("build") + stage(f"build-{name}")).replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", stages)
    assert len(installs) == 5
    for command in installs:
        # With hashes; torch by its version; our own wheel, with nothing that it would ask for.
        assert (
            "--no-deps --require-hashes --requirement" in command
            or "\"$(grep '^torch==' constraints.txt)\"" in command
            or re.search(r"--no-deps (--no-build-isolation|/wheels/)", command)
        ), command


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_hashed_packages_are_those_that_the_tests_run_with(name):
    pins = dict(
        line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    )
    hashed = hashed_requirements(name)
    assert hashed.items() <= {canonical(k): v for k, v in pins.items()}.items()


def test_hashed_packages_are_all_that_the_image_needs():
    """Nothing is resolved when the image is built, so nothing may be missing."""
    needed = closure([Requirement("specdec[serve,tracing]")]) - {"specdec", "torch"}
    assert hashed_requirements("requirements.txt").keys() == needed
    assert hashed_requirements("requirements-build.txt").keys() == closure(
        [Requirement("hatchling")]
    )


def hashed_requirements(name: str) -> dict[str, str]:
    """Versions by package; every one has a hash."""
    lines = (REPOSITORY / "docker" / name).read_text("utf-8").splitlines()
    pattern = re.compile(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}")
    found = [pattern.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found)
    return {canonical(match[1]): match[2] for match in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(todo: list[Requirement]) -> set[str]:
    """Names of all packages that these need, as they are installed here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        wanted = todo.pop()
        key = (canonical(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        for line in metadata.distribution(wanted.name).requires or []:
            part = Requirement(line)
            extras = wanted.extras or {""}
            if part.marker is None or any(part.marker.evaluate({"extra": e}) for e in extras):
                todo.append(part)
    return {name for name, _ in seen}


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
        "docker/requirements-build.txt",
        "docker/requirements.txt",
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
