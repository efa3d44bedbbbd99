"""Starts a Serve config in this process, waits until it is ready, and serves until interrupted.

What `serve run CONFIG` does, with four differences: a deployment that fails ends the command with
its reason, readiness is announced once clients can come in, SIGTERM shuts down as cleanly as
Ctrl-C, and a Ray that starts here keeps to this machine (`ray_environment`).

Importing it imports Ray, which reads the environment then: `ray_environment.variables` go first.
"""

from __future__ import annotations

import http.client
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import pydantic
import ray
from ray import serve
from ray.serve._private import api as private_api
from ray.serve.config import (
    AutoscalingConfig,
    AutoscalingPolicy,
    GangSchedulingConfig,
    RequestRouterConfig,
    gRPCOptions,
)
from ray.serve.generated.serve_pb2 import HealthzRequest
from ray.serve.generated.serve_pb2_grpc import RayServeAPIServiceStub
from ray.serve.schema import ApplicationStatus, DeploymentSchema, ServeDeploySchema

from deployments.api_keys import load_api_keys
from deployments.ray_environment import LOOPBACK, bracketed, is_loopback
from deployments.serve_bindings import HOOK
from deployments.settings import AppSettings
from specdec.errors import ConfigError, UnavailableError

IMPORT_PATH = "deployments.app:build"
# Parts of a deployment that Serve's schema keeps as they are and reads only when it deploys.
SECTIONS: dict[str, type[pydantic.BaseModel]] = {
    "autoscaling_config": AutoscalingConfig,
    "request_router_config": RequestRouterConfig,
    "gang_scheduling_config": GangSchedulingConfig,
}
Schema = TypeVar("Schema", bound=pydantic.BaseModel)
NAMESPACE = "serve"
POLL_S = 0.5
PROBE_TIMEOUT_S = 5.0
ANY_HOST = ("0.0.0.0", "::")
FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)


def launch(
    config: Mapping[str, Any],
    ray_address: str,
    ready_timeout_s: float,
    on_ready: Callable[[], None],
) -> None:
    """Run on the Ray cluster at `ray_address` until SIGINT or SIGTERM.

    Raises ConfigError for a config that Serve or the application refuses, UnavailableError where
    a deployment fails or is not ready in time.
    """
    schema = check_config(config)
    ray.init(address=ray_address, namespace=NAMESPACE, log_to_driver=True)
    _serve(schema, schema.http_options.host, ready_timeout_s, on_ready)


def launch_here(
    config: Mapping[str, Any],
    ray_host: str,
    behind_haproxy: bool,
    ready_timeout_s: float,
    on_ready: Callable[[], None],
) -> None:
    """The same on a Ray that is started here and ends with it. Its own ports are at `ray_host`; the
    fronts at the config's host, which no port behind HAProxy has.

    Also raises UnavailableError where a port of the config is taken.
    """
    schema = check_config(config)
    _check_api_keys(schema)  # the gateway will run here, and find what is here
    host = schema.http_options.host
    for port in (schema.http_options.port, schema.grpc_options.port):
        _refuse_taken_port(host, port)
    if behind_haproxy:
        schema.http_options.host = LOOPBACK if is_loopback(ray_host) else "0.0.0.0"
    start_ray(ray_host, log_to_driver=True)
    _serve(schema, host, ready_timeout_s, on_ready)


def start_ray(ray_host: str, **options: Any) -> None:
    """A Ray of our own in this process. `ray_environment.variables` are set."""
    # The loopback address is the environment's doing: given here, Ray would look up another.
    address = {} if is_loopback(ray_host) else {"_node_ip_address": ray_host}
    runtime = options.pop("runtime_env", {}) | {"worker_process_setup_hook": HOOK}
    ray.init(address="local", namespace=NAMESPACE, runtime_env=runtime, **address, **options)


def _serve(
    schema: ServeDeploySchema, host: str, ready_timeout_s: float, on_ready: Callable[[], None]
) -> None:
    stop = _stop_on_signals()  # after ray.init, which sets handlers of its own
    try:
        client = _start_serve(schema)
        client.deploy_apps(schema, _blocking=False)
        deadline_s = time.monotonic() + ready_timeout_s
        _wait_until_ready(schema, deadline_s, stop)
        _wait_until_reachable(schema, host, deadline_s, stop)
        if not stop.is_set():
            on_ready()
            stop.wait()
    finally:
        serve.shutdown()
        ray.shutdown()


def _start_serve(schema: ServeDeploySchema) -> Any:
    try:
        return private_api.serve_start(
            http_options=schema.http_options.model_dump(),
            proxy_location=schema.proxy_location,
            grpc_options=gRPCOptions(**schema.grpc_options.model_dump()),
        )
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise UnavailableError(f"the ingress did not start: {error}") from None


def _refuse_taken_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UnavailableError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def check_config(config: Mapping[str, Any]) -> ServeDeploySchema:
    """Serve's own schema of a config, and ours of the arguments in it.

    Serve ignores keys that it does not know; a misspelt one is refused here. Raises ConfigError,
    naming the key.
    """
    _check_deployments(config)
    schema = _validated(ServeDeploySchema, config, "")
    _refuse_unknown_keys(config, schema.model_dump(exclude_unset=True), "")
    for number, application in enumerate(schema.applications):
        path = f"applications.{number}"
        if application.import_path == IMPORT_PATH:
            _validated(AppSettings, application.args, f"{path}.args")
        if application.autoscaling_policy:
            _check_section(
                application.autoscaling_policy, AutoscalingPolicy, f"{path}.autoscaling_policy"
            )
        for index, deployment in enumerate(application.deployments):
            _check_sections(deployment, f"{path}.deployments.{index}")
    return schema


def _validated(kind: type[Schema], given: Any, path: str) -> Schema:
    """Raises ConfigError for the first fault, with where it is in the config."""
    try:
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(filter(None, (path, *map(str, first["loc"]))))
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"config: {field}: {message}", field=field) from None


def _check_deployments(config: Mapping[str, Any]) -> None:
    """Serve's own validators take for granted that each is a mapping."""
    for number, application in enumerate(_items(config, "applications")):
        for index, deployment in enumerate(_items(application, "deployments")):
            if not isinstance(deployment, Mapping):
                field = f"applications.{number}.deployments.{index}"
                raise ConfigError(f"config: {field}: must be a mapping", field=field)


def _items(holder: Any, name: str) -> list[Any]:
    found = holder.get(name) if isinstance(holder, Mapping) else None
    return found if isinstance(found, list) else []


def _check_api_keys(schema: ServeDeploySchema) -> None:
    for application in schema.applications:
        if application.import_path == IMPORT_PATH:
            load_api_keys(AppSettings.model_validate(application.args).gateway)


def _refuse_unknown_keys(given: Any, understood: Any, path: str) -> None:
    """`understood` is what the schema kept of `given`: a key that it lost is one it ignores."""
    if isinstance(given, Mapping) and isinstance(understood, Mapping):
        for key, value in given.items():
            field = f"{path}.{key}" if path else str(key)
            if key not in understood:
                raise ConfigError(f"config: {field}: unknown key", field=field)
            _refuse_unknown_keys(value, understood[key], field)
    elif isinstance(given, list) and isinstance(understood, list):
        for index, (item, kept) in enumerate(zip(given, understood, strict=True)):
            _refuse_unknown_keys(item, kept, f"{path}.{index}")


def _check_sections(deployment: DeploymentSchema, path: str) -> None:
    for name, kind in SECTIONS.items():
        given = getattr(deployment, name)
        if isinstance(given, Mapping) and given:
            _check_section(given, kind, f"{path}.{name}")


def _check_section(given: Mapping[str, Any], kind: type[pydantic.BaseModel], path: str) -> None:
    understood = _validated(kind, given, path).model_dump(exclude_unset=True)
    _refuse_unknown_keys(given, understood, path)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _wait_until_ready(schema: ServeDeploySchema, deadline_s: float, stop: threading.Event) -> None:
    names = {application.name for application in schema.applications}
    while not stop.is_set():
        states = {
            name: state for name, state in serve.status().applications.items() if name in names
        }
        for name, state in states.items():
            if state.status in FAILED:
                raise UnavailableError(f"application {name} failed to start: {state.message}")
        if len(states) == len(names) and all(
            state.status == ApplicationStatus.RUNNING for state in states.values()
        ):
            return
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"not ready in time: {_pending(states)}")
        stop.wait(POLL_S)


def _wait_until_reachable(
    schema: ServeDeploySchema, host: str, deadline_s: float, stop: threading.Event
) -> None:
    """The ingress learns of new replicas a moment after Serve calls them ready."""
    reached = LOOPBACK if host in ANY_HOST else host
    http_port, grpc_port = schema.http_options.port, schema.grpc_options.port
    while not stop.is_set():
        if _http_answers(reached, http_port) and _grpc_answers(reached, grpc_port):
            return
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"no answer at {reached}, ports {http_port} and {grpc_port}")
        stop.wait(POLL_S)


def _http_answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/-/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _grpc_answers(host: str, port: int) -> bool:
    with grpc.insecure_channel(f"{bracketed(host)}:{port}") as channel, suppress(grpc.RpcError):
        RayServeAPIServiceStub(channel).Healthz(HealthzRequest(), timeout=PROBE_TIMEOUT_S)
        return True
    return False


def _pending(states: Mapping[str, Any]) -> str:
    lines = [
        f"{name}/{deployment}: {status.status} {status.message}".strip()
        for name, state in states.items()
        for deployment, status in state.deployments.items()
        if status.status != "HEALTHY"
    ]
    return "; ".join(lines) or "Serve has not seen the application"
