"""Replicas that come and go while streams run: sessions spread and move, and nothing is lost.

Deployed as users do, from a config, so that a changed replica count restarts nothing else.
"""

from __future__ import annotations

import shutil
import threading

import pytest
from ray import serve
from ray.serve.context import _get_global_client

from deployments.launch import check_config
from specdec import Client
from tests.serve.harness import (
    MAX_RUNNING,
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


def deploy(cluster, name, args, deployments, **options):
    """Deploy an application as users do, from a config."""
    application = {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "deployments.app:build",
        "args": args,
        "deployments": deployments,
        **options,
    }
    http_options = {"host": "127.0.0.1", "port": cluster.http}
    config = check_config({"http_options": http_options, "applications": [application]})
    _get_global_client().deploy_apps(config, _blocking=False)


@pytest.fixture(scope="module")
def scale(cluster, service, tiny_llama, tiny_draft):
    """scale(drafts, targets): the application with so many replicas."""
    args = settings(tiny_llama, tiny_draft).model_dump(mode="json")

    def to(num_drafts, num_targets=1):
        deployments = [
            {"name": "Draft", "num_replicas": num_drafts},
            {"name": "Target", "num_replicas": num_targets},
            {"name": "Gateway"},
        ]
        deploy(cluster, NAME, args, deployments)

    yield to
    serve.delete(NAME, _blocking=True)


@pytest.fixture
def client(service):
    with Client(service.address, application=NAME) as client:
        yield client


def free_blocks():
    return {name: load.num_free_blocks for name, load in describe_target(NAME).draft_loads.items()}


def num_running(application, deployment):
    """Replicas that serve, where none is starting or stopping."""
    states = serve.status().applications[application].deployments[deployment].replica_states
    return states["RUNNING"] if list(states) == ["RUNNING"] else None


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


def test_streams_of_a_target_that_goes_come_to_their_end(scale, client, engine, tiny_tokenizer):
    scale(1, 2)
    wait_until(lambda: num_running(NAME, "Target") == 2, READY_TIMEOUT_S, "two targets")
    prompts = [f"{PROMPT} {number}" for number in range(MAX_RUNNING)]
    expected = [reference(engine, tiny_tokenizer.encode(p), **_plain())[0] for p in prompts]
    handle = serve.get_deployment_handle("Target", NAME)

    def both_in_use():
        described = handle.broadcast("describe").results(timeout_s=10)
        return len(described) == 2 and all(each.stats.num_running for each in described)

    released = []

    def one_is_left():
        if not released and both_in_use():
            scale(1, 1)
            released.append(True)
        return released and num_running(NAME, "Target") == 1

    finished = stream_while(client, prompts, one_is_left, 90, "one target left, and ended")
    check(finished, expected)
    assert len(replica_processes(NAME, "Target")) == 1


def test_a_new_draft_is_taken_into_use_while_streams_run(
    cluster, service, engine, tiny_llama, tiny_draft, tiny_tokenizer, tmp_path
):
    """As the deployment guide does it: another folder behind the link, another edition."""
    link, new = tmp_path / "draft", tmp_path / "new"
    link.symlink_to(tiny_draft)
    shutil.copytree(tiny_llama, new)  # the target itself: all that it proposes is accepted
    name = "renewed"
    args = settings(tiny_llama, link).model_dump(mode="json")

    def edition(number):
        environment = {"env_vars": {"SPECDEC_DRAFT_EDITION": str(number)}}
        options = {"num_cpus": 0.1, "runtime_env": environment}
        draft = {"name": "Draft", "num_replicas": 2, "ray_actor_options": options}
        deploy(cluster, name, args, [draft, {"name": "Target"}, {"name": "Gateway"}])

    prompts = [PROMPT, REPEATING, "a small model", "tokens are proposed"]
    expected = [reference(engine, tiny_tokenizer.encode(p), **_plain())[0] for p in prompts]
    try:
        edition(1)
        wait_until(
            lambda: len(describe_target(name).draft_loads) == 2, READY_TIMEOUT_S, "two drafts"
        )
        old = {process.pid for process in replica_processes(name, "Draft")}
        (target,) = replica_processes(name, "Target")
        changed = link.with_name("changed")
        changed.symlink_to(new)
        changed.replace(link)
        edition(2)

        def all_are_new():
            now = {process.pid for process in replica_processes(name, "Draft")}
            return not old & now and len(describe_target(name).draft_loads) == 2

        with Client(service.address, application=name) as client:
            finished = stream_while(client, prompts, all_are_new, 120, "two new drafts")
            check(finished, expected)
            last = client.complete(PROMPT, **LONG)
        assert list(last.token_ids) == expected[0]
        used = last.speculation
        assert 0 < used.num_draft_tokens == used.num_accepted_tokens, "the new one is at work"
        assert replica_processes(name, "Target")[0].pid == target.pid, "the target stayed"
    finally:
        serve.delete(name, _blocking=True)


def test_the_rule_scales_what_serve_runs(
    cluster, service, engine, tiny_llama, tiny_draft, tiny_tokenizer
):
    """Up for a queue, down when there is none, and drafts by what targets report of them."""
    name = "ruled"
    bounds = {"min_replicas": 1, "max_replicas": 2, "look_back_period_s": 11}
    bounds |= {"upscale_delay_s": 0, "downscale_delay_s": 3}
    deployments = [
        {"name": "Draft", "autoscaling_config": bounds | {"initial_replicas": 2}},
        {"name": "Target", "autoscaling_config": bounds},
        {"name": "Gateway"},
    ]
    args = settings(tiny_llama, tiny_draft).model_dump(mode="json")
    policy = {"policy_function": "deployments.autoscaling:policy"}
    prompts = [f"{PROMPT} {number}" for number in range(MAX_RUNNING + 6)]
    expected = [reference(engine, tiny_tokenizer.encode(p), **_plain())[0] for p in prompts]
    try:
        deploy(cluster, name, args, deployments, autoscaling_policy=policy)
        wait_until(lambda: num_running(name, "Target") == 1, READY_TIMEOUT_S, "a target")
        wait_until(lambda: num_running(name, "Draft") == 1, 60, "a draft less: nothing is to do")
        with Client(service.address, application=name) as client:
            grown = lambda: num_running(name, "Target") == 2  # noqa: E731
            finished = stream_while(client, prompts, grown, 90, "a second target for the queue")
            check(finished, expected)
        wait_until(lambda: num_running(name, "Target") == 1, 90, "one target for no load")
    finally:
        serve.delete(name, _blocking=True)
