"""Every object against its schema, with unknown fields refused."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.kubernetes import (
    K8S,
    OVERLAYS,
    of_kind,
    only,
    ray_service,
    render,
    rendered,
    templates,
    written,
)

RAYSERVICE_SCHEMA = REPOSITORY.parent / "shared" / "data" / "rayservice_v1.schema.json"
KUBERNETES = "1.32"
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
# Kinds of others, of which no schema is installed: tests of their own look at what we use of them.
FOREIGN = {
    "Certificate",
    "GRPCRoute",
    "HTTPRoute",
    "Issuer",
    "PodMonitor",
    "PrometheusRule",
    "RayService",
}


@pytest.fixture(scope="module")
def ray_service_schema() -> dict[str, Any]:
    if not RAYSERVICE_SCHEMA.exists():
        pytest.skip("the RayService schema is not on this machine")
    return closed(json.loads(RAYSERVICE_SCHEMA.read_text("utf-8"))["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    """A Kubernetes structural schema as a JSON schema that refuses what it does not know.

    The API server would drop an unknown field in silence. Objects without named fields (labels,
    metadata of embedded objects) stay open, as they are there.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return found


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """`value` as the API server would store it: the defaults of the schema at every depth."""
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    filled = {key: with_defaults(item, fields.get(key, {})) for key, item in value.items()}
    for key, field in fields.items():
        if "default" in field and key not in filled:
            filled[key] = copy.deepcopy(field["default"])
    return filled


def check(manifest: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(with_defaults(manifest, schema))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_rayservice_fits_the_operators_schema(overlay, ray_service_schema):
    check(ray_service(overlay), ray_service_schema)


@pytest.mark.parametrize(
    "path",
    [
        "spec.rayClusterConfig.headGroupSpec.template.spec.contianers",
        "spec.rayClusterConfig.workerGroupSpecs.0.maxReplica",
        "spec.upgradeStrategy.kind",
        "spec.serveConfigV3",
    ],
)
def test_the_check_refuses_a_misspelt_field(path, ray_service_schema):
    manifest = copy.deepcopy(ray_service("cpu-demo"))
    *parents, last = path.split(".")
    place = manifest
    for key in parents:
        place = place[int(key)] if key.isdigit() else place.setdefault(key, {})
    place[last] = 1
    with pytest.raises(jsonschema.ValidationError, match=last):
        check(manifest, ray_service_schema)


@pytest.mark.parametrize("path", ["minReplicas", "maxReplicas", "groupName"])
def test_the_check_misses_what_the_operator_misses(path, ray_service_schema):
    """minReplicas has a default, and so may be left out of a manifest; the operator's own rule
    that it stands there is among ours (test_rayservice.py)."""
    manifest = copy.deepcopy(ray_service("cpu-demo"))
    del manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"][0][path]
    if path == "groupName":
        with pytest.raises(jsonschema.ValidationError, match=path):
            check(manifest, ray_service_schema)
    else:
        check(manifest, ray_service_schema)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_core_kinds_fit_kubernetes(overlay):
    for manifest in rendered(overlay):
        if manifest["kind"] not in FOREIGN:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_every_file_fits_kubernetes_before_any_overlay():
    seen = set()
    for _, manifest in written():
        seen.add(manifest["kind"])
        if manifest["kind"] in FOREIGN:
            continue
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    assert {"NetworkPolicy", "PodDisruptionBudget", "Ingress", "Job", "StatefulSet"} <= seen


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pod_templates_are_pods_that_kubernetes_takes(overlay):
    """The operator's schema copies that of Kubernetes of its day; this one is the server's own."""
    for role, template in templates(overlay).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role}}
        pod["metadata"]["labels"] = template["metadata"]["labels"]
        pod["spec"] = template["spec"]
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_misspelt_field_of_a_core_kind_is_refused():
    budget = copy.deepcopy(of_kind(rendered("cpu-demo"), "PodDisruptionBudget")[0])
    budget["spec"]["minAvailble"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="minAvailble"):
        kubernetes_validate.validate(budget, KUBERNETES, strict=True)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_can_be_put_on_the_smallest_overlay(component, tmp_path, ray_service_schema):
    parts = {"resources": "overlays/cpu-demo", "components": f"components/{component}"}
    kustomization = {
        field: [os.path.relpath(K8S / path, tmp_path)] for field, path in parts.items()
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    manifests = render(tmp_path)
    check(only(manifests, "RayService"), ray_service_schema)
    for manifest in manifests:
        if manifest["kind"] not in FOREIGN:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    before = {(m["kind"], m["metadata"]["name"]) for m in rendered("cpu-demo")}
    after = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    assert after != before or only(manifests, "RayService") != ray_service("cpu-demo")


def test_every_component_is_used_or_an_alternative():
    text = "\n".join(path.read_text() for path in K8S.glob("overlays/*/kustomization.yaml"))
    unused = {name for name in COMPONENTS if f"components/{name}\n" not in text}
    # In place of gateway-api; off by default, both.
    assert unused == {"nginx-ingress", "tracing", "api-keys"}
