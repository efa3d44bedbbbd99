"""Two draft replicas, then one: sessions spread, move, and nothing is lost on the way.

Deployed as users do, from a config, so that a changed replica count restarts nothing else.
"""

from __future__ import annotations

import threading

import pytest
from ray import serve
from ray.serve.context import _get_global_client

from deployments.launch import check_config
from specdec import Client
from tests.serve.harness import (
    READY_TIMEOUT_S,
    describe_target,
    replica_processes,
    settings,
    wait_until,
)
from tests.serve.test_openai import PROMPT, REPEATING, reference

NAME = "scaled"
LONG = {
    "max_tokens": 220,
    "temperature": 0,
    "ignore_eos": True,
    "speculation": {"mode": "fixed", "k": 2, "drafter": "draft"},
}


@pytest.fixture(scope="module")
def scale(cluster, service, tiny_llama, tiny_draft):
    """scale(n): the application with n draft replicas."""
    args = settings(tiny_llama, tiny_draft).model_dump(mode="json")

    def to(num_drafts):
        config = {
            "http_options": {"host": "127.0.0.1", "port": cluster.http},
            "applications": [
                {
                    "name": NAME,
                    "route_prefix": f"/{NAME}",
                    "import_path": "deployments.app:build",
                    "args": args,
                    "deployments": [
                        {"name": "Draft", "num_replicas": num_drafts},
                        {"name": "Target"},
                        {"name": "Gateway"},
                    ],
                }
            ],
        }
        _get_global_client().deploy_apps(check_config(config), _blocking=False)

    yield to
    serve.delete(NAME, _blocking=True)


@pytest.fixture
def client(service):
    with Client(service.address, application=NAME) as client:
        yield client


def free_blocks():
    return {name: load.num_free_blocks for name, load in describe_target(NAME).draft_loads.items()}


def stream_while(client, prompts, condition, timeout_s, what):
    """Stream every prompt again and again until `condition()` holds, once more after it; returns
    the chunks of each finished stream, by prompt."""
    finished = [[] for _ in prompts]
    ended = threading.Event()

    def work(index):
        while True:
            is_last = ended.is_set()
            finished[index].append(list(client.generate(prompts[index], **LONG)))
            if is_last:
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    try:
        wait_until(condition, timeout_s, what)
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return finished


def test_sessions_spread_over_drafts_and_survive_their_going(
    scale, client, service, engine, tiny_tokenizer
):
    scale(2)
    wait_until(lambda: len(free_blocks()) == 2, READY_TIMEOUT_S, "two connected drafts")
    idle = free_blocks()
    (target,) = replica_processes(NAME, "Target")
    prompts = [PROMPT, REPEATING, "a small model", "tokens are proposed"]
    expected = [reference(engine, tiny_tokenizer.encode(p), **_plain())[0] for p in prompts]

    def both_in_use():
        now = free_blocks()
        return all(now[name] < idle[name] for name in idle)

    finished = stream_while(client, prompts, both_in_use, 20, "sessions at both drafts")
    check(finished, expected)
    assert all(streams[-1][-1].speculation.num_accepted_tokens > 0 for streams in finished)
    assert describe_target(NAME).link.num_resyncs == 0, "each stayed where it was"
    wait_until(lambda: free_blocks() == idle, 5, "both drafts are empty again")

    scale(1)
    finished = stream_while(
        client, prompts, lambda: len(free_blocks()) == 1, 60, "one draft left the pool"
    )
    check(finished, expected)
    assert all(streams[-1][-1].speculation.num_accepted_tokens > 0 for streams in finished)
    # Sooner than Serve's own deadline for a replica that is still in use, 20 s.
    wait_until(
        lambda: len(replica_processes(NAME, "Draft")) == 1, 12, "the lease let the other end"
    )
    assert replica_processes(NAME, "Target")[0].pid == target.pid, "the target was not restarted"


def _plain():
    return {name: value for name, value in LONG.items() if name != "speculation"}


def check(finished, expected):
    for streams, ids in zip(finished, expected, strict=True):
        for chunks in streams:
            assert [t for chunk in chunks for t in chunk.token_ids] == ids
            assert chunks[-1].finish_reason == "length"
