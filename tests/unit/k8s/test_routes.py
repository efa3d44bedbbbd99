"""Gateway API routes and nginx Ingress lead clients to what the gateway answers, and no further."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from deployments.gateway import http_app
from deployments.page_routes import router as page_router
from deployments.settings import GatewaySettings
from specdec.v1 import inference_pb2
from tests.kubernetes import K8S, Manifest, ray_service

# What the gateway answers and clients may not ask: it tells of all tenants, or of the code.
INTERNAL = {"/", "/page/{name:path}", "/metrics", "/live", "/openapi.json"}
GATEWAY_API = K8S / "components" / "gateway-api"
NGINX = K8S / "components" / "nginx-ingress"


def load(path: Path) -> Manifest:
    return yaml.safe_load(path.read_text("utf-8"))


def http_route_paths() -> list[tuple[str, str]]:
    (rule,) = load(GATEWAY_API / "http-route.yaml")["spec"]["rules"]
    kinds = {"PathPrefix": "Prefix", "Exact": "Exact"}
    return [(kinds[m["path"]["type"]], m["path"]["value"]) for m in rule["matches"]]


def ingress_paths(name: str) -> list[Manifest]:
    (rule,) = load(NGINX / name)["spec"]["rules"]
    return rule["http"]["paths"]


def leads_to(path: str, routes: list[tuple[str, str]]) -> bool:
    return any(
        path == value or (kind == "Prefix" and path.startswith(f"{value}/"))
        for kind, value in routes
    )


def nginx_routes() -> list[tuple[str, str]]:
    return [(item["pathType"], item["path"]) for item in ingress_paths("ingress-http.yaml")]


@pytest.mark.parametrize("routes", [http_route_paths, nginx_routes])
def test_clients_reach_every_route_but_the_internal_ones(routes):
    answered = set(http_app.openapi()["paths"]) | {http_app.openapi_url}
    answered |= {route.path for route in page_router.routes}
    public = {path for path in answered if leads_to(path, routes())}
    assert answered - public == INTERNAL
    # Serve's own, on the same port.
    assert not leads_to("/-/routes", routes())
    # Nothing is routed that nobody answers.
    for _, value in routes():
        assert any(path == value or path.startswith(f"{value}/") for path in answered), value


def test_grpc_clients_reach_the_service_and_reflection():
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
    expected = {service, "grpc.reflection.v1alpha.ServerReflection"}
    (rule,) = load(GATEWAY_API / "grpc-route.yaml")["spec"]["rules"]
    assert {match["method"]["service"] for match in rule["matches"]} == expected
    paths = ingress_paths("ingress-grpc.yaml")
    assert {item["path"].removeprefix("/") for item in paths} == expected


def test_all_lead_to_ports_of_the_service_that_the_operator_makes():
    service = ray_service("h100-8b")["spec"]["serveService"]
    name, ports = service["metadata"]["name"], service["spec"]["ports"]
    by_number = {port["port"]: port["name"] for port in ports}
    for file, port_name in (("http-route.yaml", "serve"), ("grpc-route.yaml", "serve-grpc")):
        (backend,) = load(GATEWAY_API / file)["spec"]["rules"][0]["backendRefs"]
        assert (backend["name"], by_number[backend["port"]]) == (name, port_name)
    for file, port_name in (("ingress-http.yaml", "serve"), ("ingress-grpc.yaml", "serve-grpc")):
        for item in ingress_paths(file):
            backend = item["backend"]["service"]
            assert (backend["name"], backend["port"]["name"]) == (name, port_name)


def test_nginx_lets_through_what_the_gateway_allows():
    annotations = load(NGINX / "ingress-http.yaml")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io"
    settings = GatewaySettings()
    assert json.loads(annotations[f"{prefix}/proxy-body-size"]) == settings.max_body_bytes
    assert annotations[f"{prefix}/proxy-buffering"] == "off"
    for name in ("ingress-http.yaml", "ingress-grpc.yaml"):
        annotations = load(NGINX / name)["metadata"]["annotations"]
        assert float(annotations[f"{prefix}/proxy-read-timeout"]) > settings.request_timeout_s
    assert annotations[f"{prefix}/backend-protocol"] == "GRPC"
