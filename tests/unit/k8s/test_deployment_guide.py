"""The deployment guide: its offline commands run, and what the others name exists."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess

import pytest

from deployments.settings import AppSettings
from tests.conftest import REPOSITORY
from tests.kubernetes import K8S, OVERLAYS, application, cluster, ray_service, rendered

GUIDE = REPOSITORY / "docs" / "deployment.md"


def blocks(tag: str) -> list[str]:
    """The lines of all bash blocks with this tag."""
    pattern = rf"^ *```bash{tag}\n(.*?)^ *```$"
    found = re.findall(pattern, GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    return [line.strip() for block in found for line in block.splitlines()]


@pytest.mark.parametrize("command", blocks(" offline"))
def test_what_needs_no_cluster_runs(command):
    words = shlex.split(command)
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here")
    ran = subprocess.run(words, cwd=REPOSITORY, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_paths_and_objects_of_the_other_commands_exist():
    objects = {
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        for overlay in OVERLAYS
        for manifest in rendered(overlay)
    }
    service = ray_service("cpu-demo")["spec"]["serveService"]["metadata"]["name"]
    objects.add(f"svc/{service}")
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile(), re.MULTILINE))
    for command in blocks(""):
        words = shlex.split(command)
        for before, word in itertools.pairwise(words):
            if before in ("-k", "--file"):
                assert (REPOSITORY / word).exists(), command
            elif before == "--target":
                assert word in stages, command
            elif re.match(r"(job|rayservice|svc)/", word):
                assert word in objects, command


def dockerfile() -> str:
    return (REPOSITORY / "docker" / "Dockerfile").read_text("utf-8")


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose first heading is `first`."""
    lines = GUIDE.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |")) + 2
    body = lines[start : next(i for i in range(start, len(lines)) if not lines[i])]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def gpus(overlay: str, count: str) -> int:
    """GPUs of the fleet where each group has as many pods as its field `count` says."""
    total = 0
    for group in cluster(overlay)["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        total += group[count] * int(limits.get("nvidia.com/gpu", 0))
    return total


def test_the_fleets_have_the_sizes_of_the_table():
    table = {name.strip("`"): (low, high) for name, _, low, high in rows("overlay")}
    assert table == {
        overlay: (f"{gpus(overlay, 'minReplicas')} GPUs", f"{gpus(overlay, 'maxReplicas')} GPUs")
        for overlay in OVERLAYS
    }


def test_a_second_cluster_costs_what_the_guide_says():
    text = " ".join(GUIDE.read_text("utf-8").split())
    for overlay in ("h100-8b", "h100-70b-tp4"):
        assert re.search(
            rf"{gpus(overlay, 'minReplicas')}( GPUs more)? for the smallest `{overlay}`", text
        )
    seconds = ray_service("h100-8b")["spec"]["rayClusterDeletionDelaySeconds"]
    assert f"then {seconds} s more" in text


def test_every_component_is_explained():
    names = {path.parent.name for path in K8S.glob("components/*/kustomization.yaml")}
    assert {row[0].strip("`") for row in rows("component")} == names


def test_the_ports_of_the_table_are_those_of_the_policies():
    named = {
        rule_port["port"]
        for manifest in rendered("h100-8b")
        if manifest["kind"] == "NetworkPolicy"
        for rule in manifest["spec"].get("ingress", [])
        for rule_port in rule.get("ports", [])
    }
    table = {int(port) for row in rows("port") for port in re.findall(r"\d+", row[0])}
    draft = AppSettings.model_validate(application("h100-8b")["args"]).draft_server.port
    assert table == named | {draft}
