"""Where Serve calls go: leases to the named draft alone, prompts to the replica that knows them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from deployments.routing import (
    MAX_QUEUE_IMBALANCE,
    PREFIX_TOKENS,
    PinnedRouter,
    PrefixAffinityRouter,
    prefix_keys,
)
from specdec.engine.request import GenerateRequest
from specdec.params import SamplingParams


def replica(name, num_requests=0.0, kv_usage=0.0):
    return SimpleNamespace(
        replica_id=SimpleNamespace(unique_id=name),
        routing_stats={"num_requests": num_requests, "kv_usage": kv_usage},
    )


def pending(*args):
    return SimpleNamespace(args=args)


def request(tokens, partition=""):
    return GenerateRequest("r", tokens, SamplingParams(), partition=partition)


def choose(router, replicas, call):
    ranks = asyncio.run(router.choose_replicas(list(replicas), call))
    return [[r.replica_id.unique_id for r in rank] for rank in ranks]


@pytest.fixture
def affinity():
    router = object.__new__(PrefixAffinityRouter)  # its constructor wants a Serve controller
    router.initialize_state()
    return router


class TestPinned:
    def test_only_the_named_replica_is_offered(self):
        router = object.__new__(PinnedRouter)
        replicas = [replica("a"), replica("b")]
        assert choose(router, replicas, pending("b", "target")) == [["b"]]
        assert choose(router, replicas, pending("gone", "target")) == [[]]
        assert choose(router, replicas, pending()) == [["a", "b"]]


LONG = list(range(2 * PREFIX_TOKENS + 10))


class TestPrefixAffinity:
    def test_a_prompt_returns_to_where_its_beginning_was(self, affinity):
        affinity.on_request_routed(pending(request(LONG)), SimpleNamespace(unique_id="b"), None)
        replicas = [replica("a", 1), replica("b", 3), replica("c", 2)]
        shared = LONG[:PREFIX_TOKENS] + [7] * 50
        for tokens in (LONG, shared):
            assert choose(affinity, replicas, pending(request(tokens)))[0] == ["b"]

    def test_another_partition_has_no_home_there(self, affinity):
        affinity.on_request_routed(
            pending(request(LONG, "tenant a")), SimpleNamespace(unique_id="c"), None
        )
        replicas = [replica("a", 1), replica("b", 2), replica("c", 3)]
        call = pending(request(LONG, "tenant b"))
        assert choose(affinity, replicas, call)[0] == ["a", "b"]

    def test_a_long_queue_breaks_the_bond(self, affinity):
        affinity.on_request_routed(pending(request(LONG)), SimpleNamespace(unique_id="b"), None)
        call = pending(request(LONG))
        bearable = [replica("a", 1), replica("b", 1 + MAX_QUEUE_IMBALANCE)]
        assert choose(affinity, bearable, call)[0] == ["b"]
        unbearable = [replica("a", 1), replica("b", 2 + MAX_QUEUE_IMBALANCE)]
        assert choose(affinity, unbearable, call)[0] == ["a", "b"]

    def test_short_prompts_go_to_the_shortest_queues_then_to_free_memory(self, affinity):
        replicas = [replica("a", 5), replica("b", 1, 0.9), replica("c", 1, 0.2)]
        assert choose(affinity, replicas, pending(request([1, 2, 3])))[0] == ["c", "b"]

    def test_a_home_that_is_gone_is_forgotten(self, affinity):
        affinity._homes = OrderedDict({prefix_keys((request(LONG),))[0]: "gone"})
        replicas = [replica("a", 5), replica("b", 1)]
        assert choose(affinity, replicas, pending(request(LONG)))[0] == ["b", "a"]

    def test_each_key_covers_all_before_it(self):
        other = [0, *LONG[1:]]
        changed_first = [5, *LONG[1:]]
        assert prefix_keys((request(other),)) == prefix_keys((request(LONG),))
        for ours, theirs in zip(
            prefix_keys((request(LONG),)), prefix_keys((request(changed_first),)), strict=True
        ):
            assert ours != theirs
