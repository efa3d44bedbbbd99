"""The weight-fill Job and the pods' wait for it, run with stand-ins for what downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from specdec.model.catalog import CATALOG
from tests.kubernetes import K8S, OVERLAYS, application, only, rendered, templates

# Writes what it was called with, and a file into the folder that it was asked to fill.
STAND_IN = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
[[ "$*" == *broken* ]] && exit 1
while [[ $# -gt 0 ]]; do
    if [[ "$1" == --local-dir ]]; then mkdir -p "$2"; touch "$2/weights"; fi
    shift
done
exit 0
"""


class Volume:
    """A volume, the scripts beside a list of models, and the calls of the stand-ins."""

    def __init__(self, root: Path) -> None:
        self.models, self.scripts, self.bin = root / "models", root / "scripts", root / "bin"
        for folder in (self.models, self.scripts, self.bin):
            folder.mkdir()
        for name in ("fill.sh", "wait.sh"):
            shutil.copy(K8S / "base" / name, self.scripts)
        for name in ("hf", "specdec"):
            (self.bin / name).write_text(STAND_IN)
            (self.bin / name).chmod(0o755)
        self.log = root / "calls"
        self.log.touch()

    def list(self, text: str) -> None:
        (self.scripts / "models.txt").write_text(text)

    def run(self, script: str, timeout_s: float = 10) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.scripts / script)],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "MODELS": str(self.models),
                "CALLS": str(self.log),
                "POLL_S": "0.05",
            },
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines


@pytest.fixture
def volume(tmp_path) -> Volume:
    return Volume(tmp_path)


PAIR = "# comment\n\nhub org/big rev1 big\nhub org/small rev2 small-2 draft\n"


def test_a_list_is_fetched_once_and_then_only_what_changed(volume):
    volume.list(PAIR)
    assert volume.run("fill.sh").returncode == 0
    first, second = volume.calls()
    assert first.startswith("hf download org/big --revision rev1 --local-dir")
    assert second.startswith("hf download org/small --revision rev2 --local-dir")
    assert (volume.models / "draft" / "weights").exists()
    assert volume.run("fill.sh").returncode == 0
    assert volume.calls() == []
    volume.list(PAIR.replace("rev2 small-2", "rev3 small-3"))
    assert volume.run("fill.sh").returncode == 0
    (again,) = volume.calls()
    assert "org/small --revision rev3" in again
    assert os.readlink(volume.models / "draft") == "small-3"
    # The old draft stays for pods that still read it, and for the way back.
    assert (volume.models / "small-2" / "weights").exists()


def test_a_folder_with_another_revision_is_fetched_again(volume):
    volume.list("hub org/big rev1 big\n")
    volume.run("fill.sh")
    volume.list("hub org/big rev2 big\n")
    volume.calls()
    assert volume.run("fill.sh").returncode == 0
    assert len(volume.calls()) == 1


def test_a_failed_fetch_switches_no_link_and_lets_nobody_start(volume):
    volume.list(PAIR)
    volume.run("fill.sh")
    volume.list("hub org/small rev3 small-3 draft\nhub org/broken rev1 broken\n")
    assert volume.run("fill.sh").returncode != 0
    assert os.readlink(volume.models / "draft") == "small-2"
    with pytest.raises(subprocess.TimeoutExpired):
        volume.run("wait.sh", timeout_s=0.5)


def test_a_pod_waits_for_the_list_that_it_was_given(volume):
    volume.list(PAIR)
    with pytest.raises(subprocess.TimeoutExpired):
        volume.run("wait.sh", timeout_s=0.5)
    volume.run("fill.sh")
    assert volume.run("wait.sh").returncode == 0
    volume.list(PAIR + "hub org/third rev1 third\n")
    with pytest.raises(subprocess.TimeoutExpired):
        volume.run("wait.sh", timeout_s=0.5)


def test_a_line_of_another_kind_is_refused_by_name(volume):
    volume.list("s3 bucket\n")
    ran = volume.run("fill.sh")
    assert ran.returncode == 2
    assert "'s3'" in ran.stderr


def test_a_catalog_model_comes_by_our_own_command(volume):
    volume.list("catalog smollm2\n")
    assert volume.run("fill.sh").returncode == 0
    assert volume.calls() == ["specdec models fetch smollm2"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_list_brings_the_models_that_the_serve_config_names(overlay):
    text = only(rendered(overlay), "ConfigMap", "specdec-weights")["data"]["models.txt"]
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    found = {f"/models/{name}" for kind, *rest in lines if kind == "hub" for name in rest[2:]}
    found |= {rest[0] for kind, *rest in lines if kind == "catalog" and rest[0] in CATALOG}
    args = application(overlay)["args"]
    assert {args["target"]["target"]["model"], args["draft"]["draft"]["model"]} <= found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_hub_models_are_pinned_by_commit(overlay):
    text = only(rendered(overlay), "ConfigMap", "specdec-weights")["data"]["models.txt"]
    for line in text.splitlines():
        if line.startswith("hub "):
            revision = line.split()[2]
            assert len(revision) == 40
            assert int(revision, 16)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_job_and_pods_share_one_volume_that_only_the_job_writes(overlay):
    job = only(rendered(overlay), "Job")["spec"]["template"]["spec"]
    assert mount(job, job["containers"][0]) == ("specdec-weights", "/models", False)
    claim = only(rendered(overlay), "PersistentVolumeClaim", "specdec-weights")
    assert claim["spec"]["resources"]["requests"]["storage"]
    for role in ("target", "draft"):
        spec = templates(overlay)[role]["spec"]
        waiting = [c for c in spec["initContainers"] if c["name"] == "wait-for-weights"]
        for container in (*waiting, spec["containers"][0]):
            assert mount(spec, container) == ("specdec-weights", "/models", True)
            variables = {item["name"]: item.get("value") for item in container["env"]}
            assert variables["MODELS"] == "/models"


def mount(spec: dict, container: dict) -> tuple[str, str, bool]:
    """Claim, path and whether read-only of a container's weights."""
    (volume,) = [v for v in spec["volumes"] if v["name"] == "weights"]
    (found,) = [m for m in container["volumeMounts"] if m["name"] == "weights"]
    claim = volume["persistentVolumeClaim"]["claimName"]
    return claim, found["mountPath"], found.get("readOnly", False)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_hubs_token_is_in_no_manifest_and_in_no_pod_that_serves(overlay):
    job = only(rendered(overlay), "Job")["spec"]["template"]["spec"]["containers"][0]
    (token,) = [item for item in job["env"] if item["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {
        "name": "hf-token",
        "key": "token",
        "optional": True,
    }
    assert not [m for m in rendered(overlay) if m["kind"] == "Secret"]
    for template in templates(overlay).values():
        for container in template["spec"]["containers"]:
            assert "HF_TOKEN" not in {item["name"] for item in container["env"]}
