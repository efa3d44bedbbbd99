"""The component with API keys, on an overlay: every pod that may run a gateway has them, Prometheus
shows one, and no manifest holds any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from deployments.settings import GatewaySettings
from tests.kubernetes import K8S, Manifest, only, render

COMPONENT = K8S / "components" / "api-keys"
OVERLAY = K8S / "overlays" / "h100-8b"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory) -> tuple[Manifest, ...]:
    folder = tmp_path_factory.mktemp("overlay")
    kustomization = {
        "resources": [os.path.relpath(OVERLAY, folder.resolve())],
        "components": [os.path.relpath(COMPONENT, folder.resolve())],
    }
    Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization), "utf-8")
    return render(folder)


def test_every_pod_of_the_fleet_has_the_keys_from_a_secret(manifests):
    cluster = only(manifests, "RayService")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        (keys,) = [item for item in container["env"] if item["name"] == "SPECDEC_API_KEYS"]
        source = {"name": "specdec-api-keys", "key": "keys.yaml"}
        assert keys == {"name": "SPECDEC_API_KEYS", "valueFrom": {"secretKeyRef": source}}


def test_prometheus_shows_an_operators_key_to_the_fleets_metrics_alone(manifests):
    monitor = only(manifests, "PodMonitor", "specdec-head")
    first, *others = monitor["spec"]["podMetricsEndpoints"]
    assert (first["port"], first["path"]) == ("serve", "/metrics")
    assert first["authorization"]["type"] == "Bearer"
    assert first["authorization"]["credentials"] == {"name": "specdec-operator-key", "key": "key"}
    assert not any("authorization" in endpoint for endpoint in others)
    workers = only(manifests, "PodMonitor", "specdec-workers")
    assert "authorization" not in str(workers)


def test_the_serve_config_can_name_the_variable():
    told = (COMPONENT / "kustomization.yaml").read_text("utf-8")
    assert "gateway: {api_keys_env: SPECDEC_API_KEYS}" in told
    GatewaySettings(api_keys_env="SPECDEC_API_KEYS")
