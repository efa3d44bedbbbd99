"""What the operator, the drain and the probes ask of a RayService, beyond its schema."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from deployments.settings import AppSettings, GatewaySettings
from tests.kubernetes import (
    GPU_OVERLAYS,
    OVERLAYS,
    application,
    cluster,
    deployment,
    only,
    ray_service,
    rendered,
    serve_config,
    templates,
)

OPERATOR_MAX_NAME = 47
WORKERS = ("target", "draft")
# Time for a new node and its weights, the least that is of use.
REPLACEMENT_S = 300


def container(overlay: str, role: str) -> dict:
    return templates(overlay)[role]["spec"]["containers"][0]


def pod_specs(overlay: str) -> list[dict]:
    """Of all pods that the manifests describe, the operator's own additions aside."""
    specs = [template["spec"] for template in templates(overlay).values()]
    for kind in ("Job", "StatefulSet"):
        found = [m for m in rendered(overlay) if m["kind"] == kind]
        specs += [manifest["spec"]["template"]["spec"] for manifest in found]
    return specs


def all_containers(spec: dict) -> list[dict]:
    return [*spec["containers"], *spec.get("initContainers", [])]


def ports(overlay: str, role: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(overlay, role)["ports"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_name_leaves_room_for_what_the_operator_appends(overlay):
    name = ray_service(overlay)["metadata"]["name"]
    assert len(name) <= OPERATOR_MAX_NAME
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_groups_of_target_and_draft_scale_apart(overlay):
    groups = cluster(overlay)["workerGroupSpecs"]
    assert [group["groupName"] for group in groups] == list(WORKERS)
    for group in groups:
        # The operator refuses a group without its bounds, whatever the schema's defaults say.
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["labels"] == {"specdec.io/role": group["groupName"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_versions_are_those_that_the_tests_run_with(overlay):
    assert cluster(overlay)["rayVersion"] == metadata.version("ray")
    image = only(rendered(overlay), "Job")["spec"]["template"]["spec"]["containers"][0]["image"]
    if overlay == "cpu-demo":  # built on the spot: no registry has given it a digest
        assert image == f"specdec:{metadata.version('specdec')}-cpu"
    for template in templates(overlay).values():
        spec = template["spec"]
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            assert each["image"] == image


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_images_are_named_by_what_is_in_them(overlay):
    """A tag can be moved to other code, a digest cannot."""
    images = [each["image"] for spec in pod_specs(overlay) for each in all_containers(spec)]
    assert len(images) > 5
    for image in images:
        assert re.fullmatch(r"[a-z0-9./:-]+@sha256:[0-9a-f]{64}", image)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_ports_named_serve_are_those_that_serve_opens(overlay):
    config = serve_config(overlay)
    expected = {
        "serve": config["http_options"]["port"],
        "serve-grpc": config["grpc_options"]["port"],
    }
    service = ray_service(overlay)["spec"]["serveService"]["spec"]["ports"]
    assert {port["name"]: port["port"] for port in service} == expected
    for role in ("head", *WORKERS):
        assert expected.items() <= ports(overlay, role).items()
    # Otherwise the operator drops the port from the service.
    assert {port["name"] for port in service} <= set(ports(overlay, "head"))
    # Without it a gateway speaks HTTP/1.1 to a gRPC server.
    assert [p["appProtocol"] for p in service if p["name"] == "serve-grpc"] == ["kubernetes.io/h2c"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_are_ready_when_a_token_is_generated(overlay):
    gateway = AppSettings.model_validate(application(overlay)["args"]).gateway
    for role in WORKERS:
        probe = container(overlay, role)["readinessProbe"]
        assert probe["httpGet"] == {"path": "/health", "port": "serve"}
        # Else the kubelet gives up before the gateway can say what is wrong.
        assert probe["timeoutSeconds"] > gateway.health_timeout_s
        # One that generates would restart a busy target.
        assert "livenessProbe" not in container(overlay, role)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_traffic_reaches_a_pod_that_did_not_prove_generation(overlay):
    assert ray_service(overlay)["spec"]["excludeHeadPodFromServeSvc"] is True
    # A head that waited for generation would wait forever: the operator deploys to ready heads.
    assert "readinessProbe" not in container(overlay, "head")
    # A worker without a proxy of its own would never be ready.
    assert serve_config(overlay)["proxy_location"] == "EveryNode"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_stopping_pod_has_the_time_of_the_longest_stream(overlay):
    longest_s = GatewaySettings.model_validate(
        application(overlay)["args"].get("gateway", {})
    ).request_timeout_s
    graceful_s = deployment(overlay, "Target")["graceful_shutdown_timeout_s"]
    assert graceful_s >= longest_s
    for role in WORKERS:
        command = container(overlay, role)["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:4] == ["python", "-m", "deployments.drain_node", "--deadline-s"]
        deadline_s = int(command[4])
        # So long before the deadline Serve stops a replica, replaced or not.
        assert deadline_s >= graceful_s + REPLACEMENT_S
        assert templates(overlay)[role]["spec"]["terminationGracePeriodSeconds"] >= deadline_s + 30
    # After an upgrade the old cluster serves to their end the streams that it began.
    assert ray_service(overlay)["spec"]["rayClusterDeletionDelaySeconds"] >= longest_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_carry_labels_of_our_own_and_selectors_use_them(overlay):
    for role, template in templates(overlay).items():
        assert template["metadata"]["labels"] == {
            "specdec.io/fleet": "specdec",
            "specdec.io/role": role,
        }
    for manifest in rendered(overlay):
        if manifest["kind"] == "PodDisruptionBudget":
            chosen = manifest["spec"]["selector"]["matchLabels"]
            assert manifest["metadata"]["name"] == f"specdec-{chosen['specdec.io/role']}"
            # The only form that Kubernetes takes for owners without a scale subresource.
            assert isinstance(manifest["spec"]["minAvailable"], int)
            assert "maxUnavailable" not in manifest["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_is_root_or_may_become_it(overlay):
    for spec in pod_specs(overlay):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in all_containers(spec):
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_of_the_image_can_be_written(overlay):
    options = cluster(overlay).get("autoscalerOptions")
    specs = pod_specs(overlay)
    for each in [c for spec in specs for c in all_containers(spec)] + (
        [options] if options else []
    ):
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_must_be_written_is_a_volume_that_goes_with_the_pod(overlay):
    """Ray's sessions, HAProxy's files and caches: in the image's TMPDIR and HOME."""
    specs = {role: template["spec"] for role, template in templates(overlay).items()}
    specs["job"] = only(rendered(overlay), "Job")["spec"]["template"]["spec"]
    runs = [(spec, spec["containers"][0]) for spec in specs.values()]
    if options := cluster(overlay).get("autoscalerOptions"):
        runs.append((specs["head"], options))
    for spec, each in runs:
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in each["volumeMounts"]}
        for path in ("/tmp", "/home/ray"):
            assert "emptyDir" in volumes[mounts[path]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_head_speaks_to_the_api_server(overlay):
    accounts = {
        manifest["metadata"]["name"]: manifest.get("automountServiceAccountToken", True)
        for manifest in rendered(overlay)
        if manifest["kind"] == "ServiceAccount"
    }
    for role, template in templates(overlay).items():
        assert accounts[template["spec"]["serviceAccountName"]] is (role == "head")


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_gpu_pods_go_to_gpu_nodes_and_are_not_overcommitted(overlay):
    for role in WORKERS:
        spec = templates(overlay)[role]["spec"]
        assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
        assert "nvidia.com/gpu.product" in spec["nodeSelector"]
        resources = container(overlay, role)["resources"]
        assert resources["requests"] == resources["limits"]


@pytest.mark.parametrize("overlay", GPU_OVERLAYS)
def test_with_the_autoscaler_no_pod_is_restarted_in_place(overlay):
    assert cluster(overlay)["enableInTreeAutoscaling"] is True
    assert cluster(overlay)["autoscalerOptions"]["version"] == "v2"
    for template in templates(overlay).values():
        assert template["spec"].get("restartPolicy", "Never") == "Never"


def test_only_ha_lets_the_head_be_drained():
    budgets = {
        overlay: {m["metadata"]["name"] for m in rendered(overlay) if "Disruption" in m["kind"]}
        for overlay in OVERLAYS
    }
    for overlay, names in budgets.items():
        has_redis = "gcsFaultToleranceOptions" in cluster(overlay)
        assert has_redis == (overlay == "ha")
        assert ("specdec-head" in names) != has_redis


def test_redis_is_where_the_head_looks_for_it():
    address = cluster("ha")["gcsFaultToleranceOptions"]["redisAddress"]
    service = only(rendered("ha"), "Service", "specdec-redis")
    port = service["spec"]["ports"][0]["port"]
    assert address == f"redis://{service['metadata']['name']}:{port}"
    redis = only(rendered("ha"), "StatefulSet")
    labels = redis["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    secret = redis["spec"]["template"]["spec"]["containers"][0]["env"][0]["valueFrom"]
    assert secret == cluster("ha")["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]


def test_the_authoritys_key_reaches_no_container_that_runs_a_model():
    for template in templates("mtls").values():
        spec = template["spec"]
        first = spec["initContainers"][0]
        assert first["name"] == "issue-certificate"
        assert [m["name"] for m in first["volumeMounts"]].count("authority") == 1
        for other in [*spec["initContainers"][1:], *spec["containers"]]:
            assert "authority" not in {mount["name"] for mount in other.get("volumeMounts", [])}


def test_the_variables_of_tls_name_files_that_the_init_container_makes():
    made = {"tls.crt", "tls.key", "ca.crt"}
    containers = [template["spec"]["containers"][0] for template in templates("mtls").values()]
    # The operator makes a container of these options, beside the head's.
    for ray in (*containers, cluster("mtls")["autoscalerOptions"]):
        variables = {item["name"]: item["value"] for item in ray["env"]}
        assert variables["RAY_USE_TLS"] == "1"
        (folder,) = [m["mountPath"] for m in ray["volumeMounts"] if m["name"] == "certificates"]
        files = {v for name, v in variables.items() if name.startswith("RAY_TLS_")}
        assert files == {f"{folder}/{name}" for name in made}
