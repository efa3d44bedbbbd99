"""One `specdec serve` for all clients: the demo pair as README starts it, on free ports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.served_command import READY_TIMEOUT_S, SPECDEC, STOP_TIMEOUT_S, ServedCommand, served

HERE = Path(__file__).parent
DEMO_MODEL = "smollm2"
FETCH_TIMEOUT_S = 300
# The first test to ask for the service waits for its start, too.
TEST_TIMEOUT_S = FETCH_TIMEOUT_S + READY_TIMEOUT_S + STOP_TIMEOUT_S + 200


@dataclass(frozen=True)
class Service:
    """A running fleet as its clients see it. `folder` holds the target's tokenizer."""

    http_url: str
    grpc_address: str
    model: str
    folder: Path
    command: ServedCommand


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.clients)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def service(request, tmp_path_factory) -> Iterator[Service]:
    """The demo, drafting with its own checkpoint in int8; tiny random models where its weights
    can be neither found nor fetched. No API keys, as in README's quick start."""
    folder = fetch(DEMO_MODEL)
    options: tuple[object, ...] = ()
    if folder is None:
        folder = request.getfixturevalue("tiny_llama")
        draft = request.getfixturevalue("tiny_draft")
        numbers = ("--dtype", "float64", "--device", "cpu", "--threads", 1)
        options = ("--target", folder, "--draft", draft, "--model-name", "tiny", *numbers)
    model = "tiny" if options else DEMO_MODEL
    with served(tmp_path_factory.mktemp("service") / "log", *options) as running:
        yield Service(running.http_url, running.grpc_address, model, folder, running)


def fetch(model: str) -> Path | None:
    """The folder that `specdec models fetch` prints; None where it fails."""
    ran = subprocess.run(
        [*SPECDEC, "models", "fetch", model],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    return Path(ran.stdout.strip()) if ran.returncode == 0 else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure of a test that talked to the service also shows the end of the service's log."""
    report = yield
    running = item.funcargs.get("service") if hasattr(item, "funcargs") else None
    if report.failed and running is not None:
        report.sections.append(("log of specdec serve", running.command.log_tail()))
    return report


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node; a skip where it or npm is not installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    return shutil.which("node")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' own tool; a skip where it is not installed."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("no promtool on this machine; it comes with Prometheus")
    return path
