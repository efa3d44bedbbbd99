"""The manifests of k8s/, rendered as `kubectl apply -k` would, for the tests that check them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY

K8S = REPOSITORY / "k8s"
OVERLAYS = tuple(sorted(path.name for path in (K8S / "overlays").iterdir()))
GPU_OVERLAYS = tuple(name for name in OVERLAYS if name != "cpu-demo")
Manifest = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """All objects of an overlay; a skip where there is no kubectl to render them."""
    return render(K8S / "overlays" / overlay)


def render(folder: Path) -> tuple[Manifest, ...]:
    """All objects of a kustomization."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here, which renders the overlays")
    ran = subprocess.run(
        [kubectl, "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return tuple(parsed(ran.stdout))


def parsed(text: str) -> Iterator[Manifest]:
    """The documents of a YAML text, by libyaml, which is ten times as fast as Python's own."""
    return yaml.load_all(text, Loader=yaml.CSafeLoader)


def written() -> list[tuple[Path, Manifest]]:
    """All objects of k8s/ as they are written, before any overlay."""
    files = [*(K8S / "base").glob("*.yaml"), *(K8S / "components").glob("*/*.yaml")]
    return [
        (path, document)
        for path in sorted(files)
        for document in parsed(path.read_text("utf-8"))
        if isinstance(document, dict) and document["kind"] not in ("Kustomization", "Component")
    ]


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: tuple[Manifest, ...], kind: str, name: str | None = None) -> Manifest:
    """The one object of a kind, or of a kind and a name."""
    found = [m for m in of_kind(manifests, kind) if name in (None, m["metadata"]["name"])]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def ray_service(overlay: str) -> Manifest:
    return only(rendered(overlay), "RayService")


def cluster(overlay: str) -> Manifest:
    """The `rayClusterConfig` of an overlay."""
    return ray_service(overlay)["spec"]["rayClusterConfig"]


def templates(overlay: str) -> dict[str, Manifest]:
    """Role to pod template: head, target, draft."""
    found = {"head": cluster(overlay)["headGroupSpec"]["template"]}
    for group in cluster(overlay)["workerGroupSpecs"]:
        found[group["groupName"]] = group["template"]
    return found


def serve_config(overlay: str) -> Manifest:
    """What the operator hands to Serve."""
    return yaml.safe_load(ray_service(overlay)["spec"]["serveConfigV2"])


def application(overlay: str) -> Manifest:
    (found,) = serve_config(overlay)["applications"]
    return found


def deployment(overlay: str, name: str) -> Manifest:
    (found,) = [item for item in application(overlay)["deployments"] if item["name"] == name]
    return found


def max_replicas(options: Manifest) -> int:
    """The most replicas that Serve may want of a deployment."""
    if "autoscaling_config" in options:
        return options["autoscaling_config"]["max_replicas"]
    return options.get("num_replicas", 1)


def min_replicas(options: Manifest) -> int:
    if "autoscaling_config" in options:
        return options["autoscaling_config"]["min_replicas"]
    return options.get("num_replicas", 1)
