"""The deployment guide: its offline commands run, and what the others name exists."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
from functools import cache

import pytest
import yaml

from deployments.settings import AppSettings
from tests.conftest import REPOSITORY
from tests.documents import printed
from tests.kubernetes import K8S, OVERLAYS, application, cluster, ray_service, rendered

GUIDE = REPOSITORY / "docs" / "deployment.md"
# Programs that need a cluster, a docker daemon, a running service or what they have made,
# whatever their arguments.
NEEDS_MORE = {"curl", "docker", "helm", "kind", "kustomize"}
# Of kubectl, what only reads files.
READS_FILES = {"kustomize"}
# What the guide makes by itself, beside the objects of the overlays.
MADE_BY_HAND = {"hf-token", "specdec-redis", "specdec-api-keys", "specdec-operator-key"}


def needs_cluster(command: str) -> bool:
    program, *arguments = shlex.split(command)
    return program in NEEDS_MORE or (program == "kubectl" and arguments[0] not in READS_FILES)


def blocks(tag: str) -> list[str]:
    """The lines of all bash blocks with this tag."""
    pattern = rf"^ *```bash{tag}\n(.*?)^ *```$"
    found = re.findall(pattern, GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    return [line.strip() for block in found for line in block.splitlines()]


def kubectl_commands() -> list[str]:
    """Those of all blocks, and those that running text and tables name."""
    named = re.findall(r"`(kubectl [^`]+)`", GUIDE.read_text("utf-8"))
    return [c for c in [*blocks(""), *blocks(" offline"), *named] if c.startswith("kubectl ")]


def test_every_command_that_needs_no_cluster_is_run():
    """A new command is either run by the test below or needs more than this machine has."""
    assert [c for c in blocks("") if not needs_cluster(c)] == []
    assert [c for c in blocks(" offline") if needs_cluster(c)] == []
    fences = set(re.findall(r"^ *```([a-z]\w* ?\w*)$", GUIDE.read_text("utf-8"), re.MULTILINE))
    assert fences <= {"bash", "bash offline", "console", "text", "yaml"}, (
        "a block that nobody looks at"
    )


def test_what_was_measured_was_measured_by_benchmarks_that_exist():
    """They take minutes and a fleet, and are not run here."""
    for entry in printed(GUIDE):
        program, flag, module, *given = shlex.split(entry.command)
        assert (program, flag, module.partition(".")[0]) == ("python", "-m", "benchmarks")
        source = REPOSITORY.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
        assert all(f'"{word}"' in source for word in given if word.startswith("--"))


@pytest.mark.parametrize("command", kubectl_commands())
def test_kubectl_knows_its_commands_and_options(command):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    _, *words = shlex.split(command)
    operation = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z-]+", word), words))
    group = 3 if operation[:2] == ["create", "secret"] else 2 if operation[0] == "create" else 1
    own = kubectl_says(*operation[:group], "--help")
    known = set(re.findall(r"(--?[a-zA-Z][\w-]*)[=,]", own + kubectl_says("options")))
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert given <= known


@cache
def kubectl_says(*words: str) -> str:
    ran = subprocess.run(
        ["kubectl", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


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
    # `default` is where Kubernetes keeps what it says of its own API server.
    spaces = {"specdec", "default"} | set(
        re.findall(r"kubectl label namespace (\w+)", GUIDE.read_text())
    )
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile(), re.MULTILINE))
    for command in [*blocks(""), *kubectl_commands()]:
        words = shlex.split(command)
        for before, word in itertools.pairwise(words):
            if before in ("-k", "--file"):
                assert (REPOSITORY / word).exists(), command
            elif before == "--target":
                assert word in stages, command
            elif before in ("-n", "--namespace", "namespace"):
                assert word in spaces, command
            elif before == "generic":
                assert word in MADE_BY_HAND, command
            elif re.match(r"(job|rayservice|svc)/", word):
                assert word in objects, command
        if words[:2] == ["kubectl", "delete"]:
            kind, name = (
                word
                for before, word in itertools.pairwise(words[1:])
                if before != "-n" and not word.startswith("-")
            )
            assert f"{kind}/{name}" in objects, command


def test_secrets_made_by_hand_are_those_that_the_manifests_read():
    text = "".join(str(manifest) for overlay in OVERLAYS for manifest in rendered(overlay))
    # No overlay has this component: it is put on one where keys are wanted.
    for patch in (K8S / "components" / "api-keys").glob("*.yaml"):
        text += str(yaml.safe_load(patch.read_text("utf-8")))
    assert all(f"'name': '{name}'" in text for name in MADE_BY_HAND)
    labels = re.findall(r"(specdec\.io/\w+)=true", GUIDE.read_text("utf-8"))
    assert all(f"'{label}': 'true'" in text for label in labels)


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
