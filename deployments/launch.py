"""Starts a Serve config in this process, waits until it is ready, and serves until interrupted.

What `serve run CONFIG` does, with three differences: a deployment that fails ends the command with
its reason, readiness is announced, and SIGTERM shuts down as cleanly as Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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
from ray.serve.schema import ApplicationStatus, DeploymentSchema, ServeDeploySchema

from deployments.api_keys import load_api_keys
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
# Serve takes gRPC messages of 2 GiB unless its processes are told otherwise, and parses them before
# anybody sees the key. A response with log-probabilities of a long prompt must fit as well.
GRPC_SIZE_VARIABLE, GRPC_MAX_BYTES = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE", 16 * 2**20
POLL_S = 0.5
FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)


def launch(
    config: Mapping[str, Any],
    ray_address: str | None,
    ready_timeout_s: float,
    on_ready: Callable[[], None],
) -> None:
    """Run until SIGINT or SIGTERM. Ray is started here unless `ray_address` names a cluster.

    Raises ConfigError for a config that Serve or the application refuses, UnavailableError where
    a deployment fails or is not ready in time.
    """
    schema = check_config(config)
    if ray_address is None:  # the gateway will run here, and find what is here
        _check_api_keys(schema)
        os.environ.setdefault(GRPC_SIZE_VARIABLE, str(GRPC_MAX_BYTES))
    ray.init(address=ray_address or "local", namespace=NAMESPACE, log_to_driver=True)
    stop = _stop_on_signals()  # after ray.init, which sets handlers of its own
    try:
        client = private_api.serve_start(
            http_options=schema.http_options.model_dump(),
            proxy_location=schema.proxy_location,
            grpc_options=gRPCOptions(**schema.grpc_options.model_dump()),
        )
        client.deploy_apps(schema, _blocking=False)
        _wait_until_ready(schema, ready_timeout_s, stop)
        if not stop.is_set():
            on_ready()
            stop.wait()
    finally:
        serve.shutdown()
        ray.shutdown()


def check_config(config: Mapping[str, Any]) -> ServeDeploySchema:
    """Serve's own schema of a config, and ours of the arguments in it.

    Serve ignores keys that it does not know; a misspelt one is refused here. Raises ConfigError,
    naming the key.
    """
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


def _wait_until_ready(schema: ServeDeploySchema, timeout_s: float, stop: threading.Event) -> None:
    names = {application.name for application in schema.applications}
    deadline_s = time.monotonic() + timeout_s
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
            raise UnavailableError(f"not ready within {timeout_s:g} s: {_pending(states)}")
        stop.wait(POLL_S)


def _pending(states: Mapping[str, Any]) -> str:
    lines = [
        f"{name}/{deployment}: {status.status} {status.message}".strip()
        for name, state in states.items()
        for deployment, status in state.deployments.items()
        if status.status != "HEALTHY"
    ]
    return "; ".join(lines) or "Serve has not seen the application"
