"""A target over two ranks, the second an actor of its own: equal text, and the loss of a rank."""

from __future__ import annotations

import json
import time

import httpx
import psutil
import pytest
from ray import serve

from specdec.errors import UnavailableError
from tests.serve.harness import (
    READY_TIMEOUT_S,
    rank_processes,
    replica_processes,
    settings,
    wait_until,
)
from tests.serve.test_openai import PROMPT, REPEATING, reference

LONG = {"max_tokens": 220, "temperature": 0, "ignore_eos": True}
# A running stream hears of a lost rank within five seconds, by the deadlines of ranks; the rest is
# slack for a busy machine. Without them it would hear from nobody before its own timeout.
LOSS_BOUND_S = 30.0


@pytest.fixture(scope="module")
def ranks(deploy, service, tiny_llama):
    started = deploy("ranks", settings(tiny_llama, None, tensor_parallel_size=2))
    wait_until(started.describe, READY_TIMEOUT_S, "two ranks")
    yield started
    serve.delete("ranks", _blocking=True)


@pytest.fixture
def client(ranks):
    with ranks.client() as client:
        yield client


def test_two_ranks_write_what_one_writes(client, engine, tiny_tokenizer):
    assert len(rank_processes()) == 1
    for prompt in (PROMPT, REPEATING):
        for wish in ({"mode": "off"}, {"mode": "fixed", "k": 4}):
            result = client.complete(prompt, max_tokens=60, seed=3, speculation=wish)
            ids, text, _ = reference(engine, tiny_tokenizer.encode(prompt), max_tokens=60, seed=3)
            assert list(result.token_ids) == ids
            assert result.text == text


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_lost_rank_ends_streams_and_is_replaced(ranks, client, engine, tiny_tokenizer, fault):
    wait_until(lambda: client.complete(PROMPT, max_tokens=2), READY_TIMEOUT_S, "a working target")
    (rank,) = rank_processes()
    (replica,) = replica_processes("ranks", "Target")
    old = [psutil.Process(process.pid) for process in (rank, replica)]
    stream = client.generate(PROMPT, **LONG)
    for _ in range(5):
        next(stream)
    body = {"prompt": PROMPT, **LONG, "stream": True}
    with httpx.stream(
        "POST", f"{ranks.url}/v1/completions", json=body, timeout=READY_TIMEOUT_S
    ) as response:
        lines = response.iter_lines()
        next(lines)
        getattr(rank, fault)()
        lost_s = time.monotonic()
        events = [line.removeprefix("data: ") for line in lines if line]
    assert time.monotonic() - lost_s < LOSS_BOUND_S
    with pytest.raises(UnavailableError):
        list(stream)
    assert time.monotonic() - lost_s < LOSS_BOUND_S
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["type"] == "ServiceUnavailableError"

    def healed():
        return client.complete(PROMPT, max_tokens=8, temperature=0).token_ids

    wait_until(healed, READY_TIMEOUT_S, "a new replica")
    ids, _, _ = reference(engine, tiny_tokenizer.encode(PROMPT), max_tokens=8, temperature=0)
    assert list(healed()) == ids
    wait_until(
        lambda: not any(p.is_running() for p in old), READY_TIMEOUT_S, "the old processes are gone"
    )
    assert len(rank_processes()) == 1, "no orphan"
