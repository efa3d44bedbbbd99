"""What the Serve tests share: settings of tiny applications, their replicas' processes, references.

Everything runs on one Ray cluster of this machine; processes are looked for only among our own
descendants, since other clusters may run beside it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray
from openai import OpenAI
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from deployments.launch import start_ray
from deployments.ray_environment import LOOPBACK
from deployments.settings import AppSettings, GatewaySettings, RankResources
from deployments.target import TargetDescription
from specdec import Client
from specdec.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from tests.serve.ray_setup import Ports

API_KEYS = """
- {key: key-a, tenant: tenant-a}
- {key: key-b, tenant: tenant-b}
- {key: key-operator, tenant: operations, operator: true}
"""
OPERATOR = {"authorization": "Bearer key-operator"}
SERVICER = "specdec.v1.inference_pb2_grpc.add_InferenceServiceServicer_to_server"
MAX_K = 6
MAX_MODEL_LEN = 256
MAX_RUNNING = 4
MAX_QUEUE = 8
NUM_BLOCKS = 512
# Room for CPUs that other work keeps busy; a run on idle ones needs a fraction of it.
READY_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Service:
    """One application as its users reach it."""

    name: str
    url: str
    address: str
    settings: AppSettings

    def openai(self, api_key: str = "key-a", max_retries: int = 0) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1",
            api_key=api_key,
            max_retries=max_retries,
            timeout=CALL_TIMEOUT_S,
        )

    def client(self, api_key: str | None = "key-a") -> Client:
        return Client(self.address, api_key=api_key, application=self.name)

    def describe(self) -> TargetDescription:
        """The one target replica's own account. Raises where it does not answer."""
        return describe_target(self.name)


def settings(
    target: Path,
    draft: Path | None,
    *,
    tensor_parallel_size: int = 1,
    draft_max_model_len: int | None = None,
    api_keys_file: Path | None = None,
) -> AppSettings:
    """An application over tiny float64 models."""
    cache = CacheConfig(block_size=4, num_blocks=NUM_BLOCKS)
    scheduler = SchedulerConfig(
        max_num_sequences=MAX_RUNNING,
        max_num_batched_tokens=64,
        max_model_len=MAX_MODEL_LEN,
        max_queue=MAX_QUEUE,
    )
    return AppSettings(
        target=EngineConfig(
            target=ModelConfig(
                model=str(target),
                dtype="float64",
                device="cpu",
                num_threads=1,
                tensor_parallel_size=tensor_parallel_size,
            ),
            cache=cache,
            scheduler=scheduler,
            speculation=SpeculationConfig(
                drafters=("ngram",) if draft is None else ("draft", "ngram"),
                max_num_speculative_tokens=MAX_K,
            ),
        ),
        draft=None
        if draft is None
        else DraftConfig(
            draft=ModelConfig(model=str(draft), dtype="float64", device="cpu", num_threads=1),
            cache=cache,
            scheduler=SchedulerConfig(
                max_num_sequences=16,
                max_num_batched_tokens=256,
                max_model_len=draft_max_model_len,
            ),
            max_num_speculative_tokens=MAX_K,
        ),
        gateway=GatewaySettings(
            model_name="tiny", api_keys_file=None if api_keys_file is None else str(api_keys_file)
        ),
        target_resources=RankResources(num_cpus=0.1),
        draft_resources=RankResources(num_cpus=0.1),
    )


def start_cluster(ports: Ports, num_cpus: int, num_attempts: int = 3) -> None:
    """Ray and Serve in this process, as `specdec serve` starts them; the environment is set.

    Ray gives its own processes 30 s to start, which a busy machine may not keep at first.
    """
    for attempt in range(num_attempts):
        try:
            start_ray(
                LOOPBACK,
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100 * 2**20,
                runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
            )
            break
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error) or attempt + 1 == num_attempts:
                raise
    serve.start(
        http_options=HTTPOptions(host=LOOPBACK, port=ports.http),
        grpc_options=gRPCOptions(port=ports.grpc, grpc_servicer_functions=[SERVICER]),
    )


def describe_target(application: str) -> TargetDescription:
    handle = serve.get_deployment_handle("Target", application)
    described = handle.broadcast("describe").results(timeout_s=CALL_TIMEOUT_S)
    assert len(described) == 1, described
    return described[0]


def holds_nothing(application: str) -> bool:
    """No sequence runs, and none has a block at the target or, by their last heartbeats, at the
    drafts; what a prefix cache keeps counts as free."""
    now = describe_target(application)
    is_free_at_drafts = all(d.num_free_blocks == NUM_BLOCKS for d in now.draft_loads.values())
    return now.stats.num_running == 0 and now.stats.kv_usage == 0 and is_free_at_drafts


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until `condition()` is true; an error in it counts as not yet."""
    deadline_s = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline_s:
        try:
            last = condition()
            if last:
                return
        except Exception as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {what}; last: {last!r}")


def replica_processes(application: str, deployment: str) -> list[psutil.Process]:
    """The living replica processes of one deployment."""
    return _processes(f"ServeReplica:{application}:{deployment}")


def rank_processes() -> list[psutil.Process]:
    """The living tensor-parallel ranks other than 0, of all applications."""
    return _processes("RankWorker")


def _processes(title: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            if process.status() != psutil.STATUS_ZOMBIE and title in process.cmdline()[0]:
                found.append(process)
    return found


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP for as long as the block runs."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
