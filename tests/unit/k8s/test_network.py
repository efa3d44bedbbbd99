"""The network policies admit what the code opens to each peer, and nothing more."""

from __future__ import annotations

from ipaddress import ip_network
from urllib.parse import urlsplit

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.trace_exporter import DEFAULT_ENDPOINT
from ray._private.ray_constants import DEFAULT_DASHBOARD_PORT
from ray.autoscaler._private.constants import AUTOSCALER_METRIC_PORT
from ray.dashboard.consts import DASHBOARD_METRIC_PORT

from deployments.launch import check_config
from deployments.settings import AppSettings
from tests.kubernetes import (
    K8S,
    OVERLAYS,
    Manifest,
    application,
    cluster,
    of_kind,
    only,
    ray_service,
    rendered,
    serve_config,
    templates,
)

# What the operator tells Ray where the start parameters do not say otherwise.
OPERATOR_METRICS_PORT = 8080
CLIENT = {"specdec.io/client": "true"}
MONITORING = {"specdec.io/monitoring": "true"}
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
FLEET = {"specdec.io/fleet": "specdec"}
EVERY_PORT = None


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: Manifest, namespace: dict[str, str] | None, pod: dict[str, str]) -> bool:
    """Whether a policy's peer means a pod with these labels; `namespace` None is our own."""
    if "ipBlock" in peer:
        raise AssertionError("no policy of ours names addresses")
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], namespace or {}):
            return False
    elif namespace is not None:
        return False
    return selects(peer.get("podSelector", {}), pod)


def admitted(
    overlay: str, role: str, namespace: dict[str, str] | None, pod: dict[str, str]
) -> set[int] | None:
    """Ports of a fleet pod that a peer may reach, as Kubernetes adds up the policies; None: all."""
    labels = FLEET | {"specdec.io/role": role}
    found: set[int] = set()
    for policy in of_kind(rendered(overlay), "NetworkPolicy"):
        spec = policy["spec"]
        if "Ingress" not in spec["policyTypes"] or not selects(spec["podSelector"], labels):
            continue
        for rule in spec.get("ingress", []):
            peers = rule.get("from")
            if peers is not None and not any(is_peer(peer, namespace, pod) for peer in peers):
                continue
            if "ports" not in rule:
                return EVERY_PORT
            found |= {port["port"] for port in rule["ports"]}
    return found


def serve_ports(overlay: str) -> set[int]:
    """Where Serve listens for clients, as the config that the operator sends it says."""
    schema = check_config(serve_config(overlay))
    return {schema.http_options.port, schema.grpc_options.port}


def metrics_port(overlay: str, role: str) -> int:
    groups = {"head": cluster(overlay)["headGroupSpec"]}
    groups |= {group["groupName"]: group for group in cluster(overlay)["workerGroupSpecs"]}
    return int(groups[role]["rayStartParams"].get("metrics-export-port", OPERATOR_METRICS_PORT))


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("role", ["head", "target", "draft"])
class TestIngress:
    def test_clients_reach_what_serve_opens(self, overlay, role):
        assert admitted(overlay, role, CLIENT, {}) == serve_ports(overlay)

    def test_prometheus_reaches_the_exporters_and_the_fleets_own_metrics(self, overlay, role):
        http = check_config(serve_config(overlay)).http_options.port
        own = {metrics_port(overlay, role), http}
        head = {AUTOSCALER_METRIC_PORT, DASHBOARD_METRIC_PORT}
        assert admitted(overlay, role, MONITORING, {}) == own | head

    def test_the_operator_reaches_the_heads_dashboard(self, overlay, role):
        expected = {DEFAULT_DASHBOARD_PORT} if role == "head" else set()
        assert admitted(overlay, role, {}, OPERATOR) == expected
        # Else it would look at the head's proxy, too.
        assert ray_service(overlay)["spec"]["excludeHeadPodFromServeSvc"] is True

    def test_the_fleet_reaches_itself_on_every_port(self, overlay, role):
        peer = FLEET | {"specdec.io/role": "target"}
        assert admitted(overlay, role, None, peer) is EVERY_PORT

    @pytest.mark.parametrize(
        ("namespace", "pod"),
        [({}, {}), ({}, FLEET), (CLIENT, OPERATOR), (None, {"specdec.io/role": "weights"})],
        ids=["another", "another with our labels", "a client", "the weight-fill job"],
    )
    def test_strangers_reach_neither_the_draft_nor_the_dashboard(
        self, overlay, role, namespace, pod
    ):
        draft = AppSettings.model_validate(application(overlay)["args"]).draft_server.port
        assert draft > 0
        got = admitted(overlay, role, namespace, pod)
        assert got is not EVERY_PORT
        if namespace == CLIENT and role == "head":
            # A namespace of clients in which the operator runs too.
            got -= {DEFAULT_DASHBOARD_PORT}
        assert got <= (serve_ports(overlay) if namespace == CLIENT else set())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_policies_name_the_pods_declare(overlay):
    """A port that no container declares is a slip in one of the two."""
    declared = {
        port["containerPort"]
        for template in templates(overlay).values()
        for container in template["spec"]["containers"]
        for port in container["ports"]
    }
    named = {
        port["port"]
        for name in ("specdec-clients", "specdec-monitoring", "specdec-operator")
        for rule in only(rendered(overlay), "NetworkPolicy", name)["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert named <= declared


def egress_peers(overlay: str, role: str) -> list[Manifest]:
    """Whom a pod of the fleet may call. A rule without `to` would be everybody, on its ports."""
    labels = FLEET | {"specdec.io/role": role}
    peers: list[Manifest] = []
    for policy in of_kind(rendered(overlay), "NetworkPolicy"):
        spec = policy["spec"]
        if "Egress" in spec["policyTypes"] and selects(spec["podSelector"], labels):
            for rule in spec.get("egress", []):
                assert rule.get("to"), policy["metadata"]["name"]
                peers += rule["to"]
    return peers


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_of_the_fleet_may_not_call_the_internet(overlay):
    for role in ("head", "target", "draft"):
        for peer in egress_peers(overlay, role):
            if "ipBlock" in peer:
                # One address: that of the API server, which no label selects.
                assert role == "head"
                assert ip_network(peer["ipBlock"]["cidr"]).num_addresses == 1
            else:
                assert "podSelector" in peer


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_a_head_with_the_autoscaler_calls_the_api_server(overlay):
    blocks = [peer for peer in egress_peers(overlay, "head") if "ipBlock" in peer]
    assert len(blocks) == cluster(overlay).get("enableInTreeAutoscaling", False)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_weight_fill_job_may(overlay):
    labels = only(rendered(overlay), "Job")["spec"]["template"]["metadata"]["labels"]
    policy = only(rendered(overlay), "NetworkPolicy", "specdec-weights")
    assert selects(policy["spec"]["podSelector"], labels)
    assert policy["spec"]["egress"] == [{"ports": [{"port": 443}]}]
    assert policy["spec"].get("ingress", []) == []


def test_spans_may_go_to_the_port_that_the_exporter_uses():
    path = K8S / "components" / "tracing" / "network-policy.yaml"
    (rule,) = yaml.safe_load(path.read_text("utf-8"))["spec"]["egress"]
    assert rule["ports"] == [{"port": urlsplit(DEFAULT_ENDPOINT).port}]
