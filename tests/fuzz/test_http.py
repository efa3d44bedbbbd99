"""Bodies, headers and paths that nobody meant, through the gateway's own routes.

Whatever comes, the answer is one that the documents name: never a 500, an error in OpenAI's form
that repeats little of what was sent, and within bounds of time and memory.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import resource
import time

import pytest

from specdec.engine.async_engine import AsyncEngine
from tests.fuzz.front_door import KEY, MODEL, gateway_service, http_client
from tests.fuzz.rounds import fuzz_async
from tests.fuzz.values import anything, changed, text
from tests.unit.engine.engine_harness import make_engine

STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 503, 504}
ANSWER_TIMEOUT_S = 60.0
MAX_CPU_S = 10.0
MAX_GROWTH_KIB = 700 * 1024
MAX_ERROR_CHARS = 1200

SHARED = {
    "model": MODEL,
    "max_tokens": 3,
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.0,
    "seed": 1,
    "stop": ["zzz"],
    "stop_token_ids": [3],
    "logit_bias": {"5": 1.0},
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "ignore_eos": False,
    "bad_words": ["dog"],
    "allowed_token_ids": [10, 11, 12],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 4,
    "return_token_ids": True,
    "return_tokens_as_token_ids": False,
    "request_id": "r",
    "cache_salt": "s",
    "user": "u",
    "metadata": {"a": "b"},
    "timeout": 30.0,
    "response_format": {"type": "text"},
    "speculation": {"mode": "fixed", "k": 2, "drafter": "ngram", "explain": True},
    "speculation_mode": "auto",
    "suffix": None,
    "best_of": 1,
}
COMPLETION = {
    **SHARED,
    "prompt": "the cat",
    "echo": False,
    "logprobs": 2,
    "add_special_tokens": True,
}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{}"}}]},
    {"role": "user", "content": "hi"},
]
CHAT = {
    **SHARED,
    "messages": MESSAGES,
    "max_completion_tokens": 3,
    "logprobs": True,
    "top_logprobs": 1,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "chat_template_kwargs": {"a": 1},
    "add_generation_prompt": True,
    "continue_final_message": False,
}
TOKENIZE = {"model": MODEL, "prompt": "the cat", "messages": MESSAGES, "add_special_tokens": True}
BODIES = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/tokenize": TOKENIZE,
    "/detokenize": {"model": MODEL, "tokens": [3, 4, 5]},
}
REQUIRED = {"/v1/completions": ["prompt"], "/v1/chat/completions": ["messages"],
            "/tokenize": ["prompt"], "/detokenize": ["tokens"]}  # fmt: skip
PATHS = ["/", "/v1/models", "/v1/models/", "/v1/models/tiny", "/v1", "/nowhere", "/v1/embeddings"]


@pytest.fixture(scope="module")
def engine(tiny_llama):
    built = AsyncEngine(make_engine(tiny_llama, max_model_len=64, max_num_sequences=4))
    yield built
    built.shutdown()


def sparse(rng: random.Random, path: str) -> dict:
    """A valid body with a handful of its fields: all at once would always be refused early."""
    body = BODIES[path]
    chosen = rng.sample(sorted(body), min(len(body), rng.randrange(8)))
    return {name: body[name] for name in [*chosen, *REQUIRED[path]]}


def encoded(rng: random.Random, value: object) -> tuple[bytes, dict[str, str]]:
    data = json.dumps(value).encode()
    kind = rng.randrange(20)
    if kind == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif kind == 1:
        spoilt = bytearray(data or b" ")
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        data = bytes(spoilt)
    elif kind == 2:
        data = b"\xef\xbb\xbf" + data
    elif kind == 3:
        return gzip.compress(data), {"content-encoding": "gzip"}
    elif kind == 4:
        coding = rng.choice(("gzip", "zstd", "br", "identity", "gzip, gzip", "x"))
        return data, {"content-encoding": coding}
    elif kind == 5:
        data = b"[" * rng.choice((100, 10_000, 1_000_000))
    elif kind == 6:  # a little that unpacks to much
        return gzip.compress(b" " * 20_000_000), {"content-encoding": "gzip"}
    return data, {}


def headers(rng: random.Random) -> dict[str, str]:
    authorization = f"Bearer {KEY}"
    if rng.random() < 0.1:
        authorization = rng.choice(("", "Bearer", "Basic x", "Bearer " + "x" * 5000, KEY))
    given = {"authorization": authorization, "content-type": "application/json"}
    if rng.random() < 0.1:
        given["x-request-id"] = ascii(text(rng))[:3000]
    return given


def check(response, cpu_s: float) -> None:
    assert response.status_code in STATUSES, (response.status_code, response.text[:500])
    assert cpu_s < MAX_CPU_S
    if response.status_code == 200:
        return
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert len(error["message"]) < MAX_ERROR_CHARS
    if response.status_code == 400:
        assert error["param"], error


async def exchange(client, rng: random.Random, method: str, path: str, value: object) -> int:
    data, extra = encoded(rng, value)
    began_s = time.process_time()
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        response = await client.request(
            method, path, content=data, headers={**headers(rng), **extra}
        )
    check(response, time.process_time() - began_s)
    return response.status_code


async def test_whatever_is_posted_gets_an_answer_that_is_documented(
    engine, tiny_tokenizer, monkeypatch
):
    service = gateway_service(engine, tiny_tokenizer, monkeypatch, max_prompts=4)
    seen: set[int] = set()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async with http_client(service, monkeypatch) as client:

        async def one_round(rng: random.Random) -> None:
            path = rng.choice(sorted(BODIES))
            body: object = changed(rng, sparse(rng, path), sorted(BODIES[path]))
            if rng.random() < 0.05:
                body = anything(rng)
            seen.add(await exchange(client, rng, "POST", path, body))

        await fuzz_async(one_round, 400)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < MAX_GROWTH_KIB
    assert {200, 400, 401} <= seen, "the fuzzer reaches neither work nor refusals"
    assert not engine.engine.has_work


async def test_any_method_on_any_path_is_answered_in_one_form(engine, tiny_tokenizer, monkeypatch):
    service = gateway_service(engine, tiny_tokenizer, monkeypatch)
    async with http_client(service, monkeypatch) as client:

        async def one_round(rng: random.Random) -> None:
            path = rng.choice([*PATHS, *BODIES])
            if rng.random() < 0.2:
                path += rng.choice(("/", "/x", "%00", "?a=b", "/../x", "/%2e%2e/x"))
            method = rng.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await client.request(method, path, headers=headers(rng))
            if response.status_code == 307:  # a slash too many: the same path without it
                assert response.headers["location"].startswith("http://gateway/")
            else:
                check(response, 0.0)

        await fuzz_async(one_round, 150)
