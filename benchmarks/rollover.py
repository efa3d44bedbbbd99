"""What upgrades cost those who stream: a new draft model, and a target that leaves.

    python -m benchmarks.rollover [--streams 8] [--max-tokens 48] [--json]

A Ray cluster of several nodes on this machine serves the demo's model from two targets and two
drafts. All the while `--streams` clients stream over gRPC, one request after the other, half of
them greedy and half seeded, and three things happen as docs/deployment.md describes them:

- new draft: the link behind the draft's name is switched and its edition counted up
- target drained: Ray drains the node of one target, as the preStop hook asks it to, and Serve
  starts another elsewhere
- target released: two targets become one

For each it prints the requests that failed, the streams that were cut, the texts that differ from
those without speculation, and the longest wait for a token, beside the same of a quiet time. Ends
with status 1 where a request failed, a stream was cut or a text differed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.context import _get_global_client

from benchmarks.measure import machine
from benchmarks.rollover_clients import Clients, Outcome, outcome
from benchmarks.served_demo import demo_config
from deployments.drain_node import REPLICA_PREFIX, wait_until_empty
from deployments.launch import check_config
from deployments.ray_environment import authentication
from specdec import Client
from specdec.model.catalog import resolve

MODEL = "smollm2"
NEW_DRAFT_LAYERS = 24
NUM_TARGETS, NUM_DRAFTS = 2, 2
GRACE_S = 300
DRAIN_DEADLINE_S = 600
EVENT_TIMEOUT_S = 600.0
# Targets are placed by a resource of their own, one for each node, so that draining a node moves
# exactly one of them.
SEAT = "target_seat"


class Fleet:
    """The demo over several nodes of this machine."""

    def __init__(self, cluster: Cluster, target_nodes: Sequence[Any], draft_link: Path) -> None:
        self._cluster = cluster
        self._target_nodes = target_nodes
        self._draft_link = draft_link
        self._config = _config(str(draft_link))
        self.address = f"127.0.0.1:{self._config['grpc_options']['port']}"

    def start(self) -> None:
        """Deploy, and wait until a request was answered with draft tokens of a draft model."""
        http, grpc = self._config["http_options"], self._config["grpc_options"]
        serve.start(http_options=HTTPOptions(**http), grpc_options=gRPCOptions(**grpc))
        self._deploy()
        self._wait_for("Target", NUM_TARGETS)
        self._wait_for("Draft", NUM_DRAFTS)
        wait_until(self._answers, "an answer")

    def new_draft(self, folder: Path) -> None:
        """Switch the link, restart the drafts one by one, and wait for the last."""
        old = {process.pid for process in self._replicas("Draft")}
        replace_link(self._draft_link, folder)
        options = self._deployment("Draft")["ray_actor_options"]
        options["runtime_env"] = {"env_vars": {"SPECDEC_DRAFT_EDITION": "2"}}
        self._deploy()
        wait_until(
            lambda: not old & {each.pid for each in self._replicas("Draft")}, "the old drafts' end"
        )
        self._wait_for("Draft", NUM_DRAFTS)

    def drain_a_target(self) -> None:
        """What the preStop hook of a target's pod does, and its waiting."""
        node = next(n for n in self._target_nodes if num_replicas_of(n))
        command = [Path(sys.executable).parent / "ray", "drain-node", "--node-id", node.node_id]
        command += ["--address", self._cluster.address]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--reason-message", "the pod is stopping"]
        command += ["--deadline-remaining-seconds", str(DRAIN_DEADLINE_S)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        if wait_until_empty(lambda: num_replicas_of(node), DRAIN_DEADLINE_S):
            raise SystemExit("the drained node kept its target")
        self._wait_for("Target", NUM_TARGETS)

    def release_a_target(self) -> None:
        """Two become one."""
        self._deployment("Target")["num_replicas"] = 1
        self._deploy()
        wait_until(lambda: len(self._replicas("Target")) == 1, "one target alone")
        self._wait_for("Target", 1)

    def _deployment(self, name: str) -> dict[str, Any]:
        deployments = self._config["applications"][0]["deployments"]
        found: dict[str, Any] = next(each for each in deployments if each["name"] == name)
        return found

    def _deploy(self) -> None:
        _get_global_client().deploy_apps(check_config(self._config), _blocking=False)

    def _answers(self) -> bool:
        with Client(self.address) as client:
            return bool(client.complete("Once", max_tokens=1).token_ids)

    def _replicas(self, name: str) -> list[psutil.Process]:
        return [each for each in _replica_processes() if f":{name}" in each.cmdline()[0]]

    def _wait_for(self, name: str, number: int) -> None:
        def is_there() -> bool:
            application = serve.status().applications["specdec"].deployments[name]
            return (
                application.status == "HEALTHY"
                and application.replica_states.get("RUNNING") == number
            )

        wait_until(is_there, f"{number} {name}s")


def _config(draft: str) -> dict[str, Any]:
    config = demo_config({})
    (application,) = config["applications"]
    application["args"]["draft"]["draft"]["model"] = draft
    application["args"]["target_resources"] = {"num_cpus": 0}
    application["deployments"] = [
        {"name": "Gateway", "num_replicas": 1},
        {
            "name": "Target",
            "num_replicas": NUM_TARGETS,
            "graceful_shutdown_timeout_s": GRACE_S,
            "ray_actor_options": {"num_cpus": 0, "resources": {SEAT: 1}},
        },
        {
            "name": "Draft",
            "num_replicas": NUM_DRAFTS,
            "ray_actor_options": {
                "num_cpus": 0.5,
                "runtime_env": {"env_vars": {"SPECDEC_DRAFT_EDITION": "1"}},
            },
        },
    ]
    return config


def replace_link(link: Path, folder: Path) -> None:
    """Let `link` name another folder, in one move, as the weight-fill Job does."""
    made = link.with_suffix(".new")
    made.symlink_to(folder)
    made.replace(link)


def num_replicas_of(node: Any) -> int:
    """Serve replicas among the processes of one node's raylet."""
    (raylet,) = node.all_processes["raylet"]
    return sum(_is_replica(each) for each in psutil.Process(raylet.process.pid).children())


def _replica_processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if _is_replica(each)]


def _is_replica(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return bool(words) and words[0].startswith(REPLICA_PREFIX)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll; an error counts as not yet."""
    deadline_s = time.monotonic() + EVENT_TIMEOUT_S
    last = ""
    while time.monotonic() < deadline_s:
        try:
            if condition():
                return
        except Exception as error:
            last = f": {error}"
        time.sleep(0.1)
    raise SystemExit(f"not within {EVENT_TIMEOUT_S:g} s: {what}{last}")


@contextmanager
def nodes(num_seats: int) -> Iterator[tuple[Cluster, list[Any]]]:
    """A cluster whose head holds gateway and drafts, and `num_seats` nodes for a target each."""
    small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **small})
    try:
        seats = [
            cluster.add_node(num_cpus=0, resources={SEAT: 1}, **small) for _ in range(num_seats)
        ]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, seats
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def shorter_copy(model: Path, num_layers: int, folder: Path) -> Path:
    """The model's first layers as a model of its own: a draft that differs from the one before."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.model.layers = loaded.model.layers[:num_layers]
    loaded.config.num_hidden_layers = num_layers
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def run(num_streams: int, max_tokens: int, folder: Path) -> list[Outcome]:
    """All events in turn, on one fleet."""
    model = resolve(MODEL)
    new_draft = shorter_copy(model, NEW_DRAFT_LAYERS, folder / "new-draft")
    link = folder / "draft"
    link.symlink_to(model)
    with nodes(NUM_TARGETS + 1) as (cluster, seats):
        fleet = Fleet(cluster, seats, link)
        fleet.start()
        clients = Clients(fleet.address, num_streams, max_tokens)
        expected = clients.alone()
        events: list[tuple[str, Callable[[], None]]] = [
            ("nothing", lambda: time.sleep(30)),
            ("new draft", lambda: fleet.new_draft(new_draft)),
            ("target drained", fleet.drain_a_target),
            ("target released", fleet.release_a_target),
        ]
        outcomes = []
        for name, event in events:
            streams, seconds = clients.stream_during(event)
            for each in streams:
                if each.error is not None:
                    print(f"{name}: {each.error}", file=sys.stderr)
            outcomes.append(outcome(name, seconds, streams, expected))
            print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(arguments.streams, arguments.max_tokens, Path(folder))
    if arguments.json:
        print(json.dumps({"machine": machine(), "events": [asdict(each) for each in outcomes]}))
    else:
        print(f"{machine()}\n{arguments.streams} streams of {arguments.max_tokens} tokens")
        print("| event | s | requests | failed | cut | differing | first s | gap s | accepted |")
        print("|---|---|---|---|---|---|---|---|---|")
        for each in outcomes:
            print(
                f"| {each.event} | {each.seconds:.1f} | {each.requests} | {each.failed} "
                f"| {each.cut} | {each.differing} | {each.longest_first_s:.1f} "
                f"| {each.longest_gap_s:.1f} | {each.accepted} |"
            )
    if not all(each.is_clean for each in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    if "RAY_AUTH_MODE" not in os.environ:
        # Ray has read its environment by now, and its nodes must all ask for the same token.
        os.execve(sys.executable, sys.orig_argv, os.environ | authentication())
    main()
