"""One Ray cluster and one application for all Serve tests; more applications where a test must
break or configure one for itself."""

from __future__ import annotations

from pathlib import Path

from tests.serve.ray_setup import prepare, remove

PORTS, FOLDER = prepare("haproxy")  # before anything imports Ray, which reads the environment

import httpx  # noqa: E402
import pytest  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

from deployments.app import build  # noqa: E402
from specdec.engine import Engine  # noqa: E402
from tests.serve.harness import (  # noqa: E402
    API_KEYS,
    READY_TIMEOUT_S,
    Service,
    settings,
    start_cluster,
    wait_until,
)

HERE = Path(__file__).parent
# The first test of a file also waits for its application; other work may hold the CPUs.
TEST_TIMEOUT_S = 300


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster():
    """Ray and Serve on this machine, with free ports."""
    start_cluster(PORTS, num_cpus=16)
    yield PORTS
    serve.shutdown()
    ray.shutdown()
    remove(FOLDER)


@pytest.fixture(scope="session")
def deploy(cluster):
    """Start an application under a name of its own: deploy(name, settings) -> Service."""

    def start(name, app_settings, ready=True):
        prefix = "/" if name == "main" else f"/{name}"
        serve.run(build(app_settings), name=name, route_prefix=prefix, blocking=False)
        service = Service(
            name=name,
            url=f"http://127.0.0.1:{cluster.http}{prefix.rstrip('/')}",
            address=f"127.0.0.1:{cluster.grpc}",
            settings=app_settings,
        )
        wait_until(
            lambda: httpx.get(f"{service.url}/version").status_code == 200,
            READY_TIMEOUT_S,
            "the ingress knows the gateway",
        )
        return service

    return start


@pytest.fixture(scope="session")
def service(deploy, tiny_llama, tiny_draft, tmp_path_factory) -> Service:
    """The main application: keys of two tenants, a short queue, one draft replica."""
    keys = tmp_path_factory.mktemp("keys") / "api-keys.yaml"
    keys.write_text(API_KEYS, "utf-8")
    main = deploy("main", settings(tiny_llama, tiny_draft, api_keys_file=keys))
    wait_until(lambda: main.describe().draft_loads, READY_TIMEOUT_S, "a connected draft")
    return main


@pytest.fixture
def openai(service):
    with service.openai() as client:
        yield client


@pytest.fixture
def grpc_client(service):
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def engine(service) -> Engine:
    """The same target in this process, without any drafter: the reference."""
    config = service.settings.target
    reference = Engine.from_config(
        config.model_copy(
            update={
                "speculation": config.speculation.model_copy(
                    update={"drafters": (), "max_num_speculative_tokens": 0}
                )
            }
        )
    )
    yield reference
    reference.shutdown()
